"""A user's function: its name, and the parameters that LongCA fills."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longca.errors import RequestError, UnknownNameError
from longca.plain_text import plain_text

__all__ = ["UserFunction", "load"]

_EXAMPLE = "MODULE:FUNCTION, such as my_module:attention"


@dataclass(frozen=True)
class UserFunction:
    """A function of q, k and v.

    Attributes:
        name: Its name in messages.
        call: The function.
        asks: The parameters after q, k and v that LongCA fills, by name.
    """

    name: str
    call: Callable[..., Any]
    asks: tuple[str, ...]

    @classmethod
    def of(cls, function: Any, known: tuple[str, ...], name: str | None = None) -> UserFunction:
        """Reads a function's parameters.

        Args:
            function: The function. Its first three parameters are q, k and v.
            known: The names of the parameters that LongCA fills.
            name: Its name in messages. None for its own.

        Raises:
            RequestError: It cannot be called with q, k and v, or it needs a parameter that LongCA does not know.
        """
        name = name or getattr(function, "__name__", None) or type(function).__name__
        if not callable(function) or isinstance(function, type):
            kind = "a class" if isinstance(function, type) else f"of type {type(function).__name__}"
            raise RequestError(f"{name} is {kind}; give a function of q, k and v, or a module's instance")
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            raise RequestError(
                f"the parameters of {name} are not known to Python; wrap it in a function of q, k and v"
            ) from None
        if not any(p.kind is p.VAR_POSITIONAL for p in parameters[:3]):
            positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            if len(positional) < 3:
                raise RequestError(f"{name} takes {len(positional)} tensors; the first three parameters are q, k and v")
            parameters = [p for p in parameters if p not in positional[:3]]
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if unknown := [p.name for p in named if p.default is p.empty and p.name not in known]:
            raise RequestError(
                f"{name} needs {', '.join(unknown)}, which LongCA does not give. Known parameters are "
                f"{', '.join(known)}. Give the others defaults, or wrap the function"
            )
        return cls(name, function, tuple(p.name for p in named if p.name in known))


def load(text: str) -> Any:
    """The object that a text such as `my_module:attention` names. The working folder is searched first.

    Raises:
        RequestError: There is no such module, or its import raises.
        UnknownNameError: The module has no such name.
    """
    module, _, path = text.partition(":")
    if not (module and path):
        raise RequestError(f"the function is {text!r}; give {_EXAMPLE}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise RequestError(f"the import of {module} needs {error.name}, which is not installed") from error
        raise RequestError(
            f"there is no module {module!r} in {plain_text(here)} or among the installed packages; "
            f"run longca in the folder of {module.replace('.', '/')}.py, or install it"
        ) from None
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {plain_text(error, 500)}".rstrip(": ")
        raise RequestError(f"the import of {module} raised {said}. Repair it, then ask again") from error
    for part in path.split("."):
        if not hasattr(found, part):
            names = (name for name, value in vars(found).items() if callable(value) and not name.startswith("_"))
            raise UnknownNameError(f"function of {module}", path, names)
        found = getattr(found, part)
    return found
