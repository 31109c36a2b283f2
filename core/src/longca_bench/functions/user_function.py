"""A user's function: its name, and the parameters that LongCA fills."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from longca.errors import RequestError, UnknownNameError
from longca_bench.functions.arguments import ARGUMENTS

__all__ = ["UserFunction", "load", "names_of"]


@dataclass(frozen=True)
class UserFunction:
    """A function of q, k and v, with its name in messages and the further parameters that LongCA fills."""

    name: str
    call: Callable[..., Any]
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, function: Any, name: str | None = None) -> UserFunction:
        """Reads a function's parameters. One that functools.partial binds keeps its value.

        Raises:
            RequestError: It cannot be called with q, k and v, or it needs a parameter that LongCA does not know.
        """
        name = name or getattr(function, "__name__", None) or type(function).__name__
        if not callable(function) or isinstance(function, type):
            kind = "a class" if isinstance(function, type) else f"of type {type(function).__name__}"
            raise RequestError(f"{name} is {kind}; give a function of q, k and v, or a module's instance")
        own = getattr(function, "_orig_mod", function)  # of torch.compile
        own = getattr(own, "forward", own)  # the call of a torch.nn.Module takes any parameters
        try:
            parameters = list(inspect.signature(own).parameters.values())
        except (TypeError, ValueError):
            raise RequestError(
                f"the parameters of {name} are not known to Python; wrap it in a function of q, k and v"
            ) from None
        if not any(p.kind is p.VAR_POSITIONAL for p in parameters[:3]):
            positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            if len(positional) < 3 or positional[0].name == "self":
                raise RequestError(f"the first three parameters of {name} must be q, k and v; wrap it in a function")
            parameters = [p for p in parameters if p not in positional[:3]]
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if unknown := [p.name for p in named if p.default is p.empty and p.name not in ARGUMENTS]:
            raise RequestError(
                f"{name} needs {', '.join(unknown)}, which LongCA does not give. Known parameters are "
                f"{', '.join(ARGUMENTS)}. Give the others defaults, or wrap the function"
            )
        bound = getattr(own, "keywords", {})  # of functools.partial
        return cls(name, function, tuple(p.name for p in named if p.name in ARGUMENTS and p.name not in bound))


def names_of(text: str) -> tuple[str, str]:
    """The module and the name in it that a text such as `my_module:attention` has.

    Raises:
        RequestError: The text has another form.
    """
    module, _, path = text.partition(":")
    if module.endswith(".py") or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise RequestError(f"the function is {text!r}; give MODULE:FUNCTION, such as my_module:attention")
    return module, path


def load(text: str) -> Any:
    """The object that a text such as `my_module:attention` names. The working folder is searched first.

    Raises:
        RequestError: There is no such module, or its import raises.
        UnknownNameError: The module has no such name.
    """
    module, path = names_of(text)
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise RequestError(f"the import of {module} needs {error.name}, which is not installed") from error
        raise RequestError(
            f"there is no module {module!r} in {here} or among the installed packages; run longca in the folder of "
            f"{module.replace('.', '/')}.py, or install it"
        ) from None
    except (Exception, SystemExit) as error:
        raise RequestError(f"the import of {module} raised {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            names = (name for name, value in vars(found).items() if callable(value) and not name.startswith("_"))
            raise UnknownNameError(f"function of {module}", path, names)
        found = getattr(found, part)
    return found
