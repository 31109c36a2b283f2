"""A user's function: its name, and the parameters that LongCA fills."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, partialmethod
from typing import Any

from longca.errors import RequestError, UnknownNameError
from longca.plain_text import plain_text

__all__ = ["UserFunction", "check_module", "load", "names_of"]

_EXAMPLE = "MODULE:FUNCTION, such as my_module:attention"
#: Functions whose call returns no result.
_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


@dataclass(frozen=True)
class UserFunction:
    """A function of q, k and v.

    Attributes:
        name: Its name in messages.
        call: The function.
        asks: The parameters after q, k and v that LongCA fills, by name. A parameter that functools.partial binds is
            not among them.
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
            raise _no_function(name, "a class" if isinstance(function, type) else f"of type {type(function).__name__}")
        if any(is_one(function) for is_one in _LATER):
            raise RequestError(f"{name} is a coroutine or a generator; wrap it in a function that returns a tensor")
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
            if positional and positional[0].name == "self":
                raise RequestError(f"{name} is a method without its object; make the object in the module, and name it")
            if len(positional) < 3:
                raise RequestError(
                    f"{name} takes {len(positional)} tensors; wrap it, so that the first three parameters are q, k, v"
                )
            parameters = [p for p in parameters if p not in positional[:3]]
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if unknown := [p.name for p in named if p.default is p.empty and p.name not in known]:
            raise RequestError(
                f"{name} needs {', '.join(unknown)}, which LongCA does not give. Known parameters are "
                f"{', '.join(known)}. Give the others defaults, or wrap the function"
            )
        bound = _bound(own)
        return cls(name, function, tuple(p.name for p in named if p.name in known and p.name not in bound))


def _bound(function: Any) -> set[str]:
    """The parameters that functools.partial binds by name, in a function and in those that it wraps."""
    names: set[str] = set()
    while function is not None:
        method = getattr(function, "_partialmethod", None) or getattr(function, "__partialmethod__", None)
        function = method if isinstance(method, partialmethod) else function
        if isinstance(function, (partial, partialmethod)):
            names |= function.keywords.keys()
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None)
    return names


def names_of(text: str) -> tuple[str, str]:
    """The module and the name in it that a text such as `my_module:attention` has.

    Raises:
        RequestError: The text has another form.
    """
    module, _, path = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise RequestError(f"the function is {plain_text(repr(text))}; give {_EXAMPLE}")
    if module.endswith(".py"):
        raise RequestError(f"the function is {text!r}; give its module without .py: {module[:-3]}:{path}")
    return module, path


def check_module(text: str) -> None:
    """Checks that the module of such a text is there and can be compiled, without running any of it.

    Raises:
        RequestError: It is not, or the text names a class of the module.
    """
    module, name = names_of(text)
    _search_here()
    classes: list[str] = []
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
        if found is not None and isinstance(found.loader, importlib.machinery.SourceFileLoader):
            source = ast.parse(found.loader.get_data(found.loader.path), found.loader.path)
            compile(source, found.loader.path, "exec", dont_inherit=True)  # finds more mistakes than the parser
            classes = [line.name for line in source.body if isinstance(line, ast.ClassDef)]
    except (SyntaxError, ValueError, OSError) as error:
        raise _raised(module, error) from None
    if found is None:
        raise _absent(module)
    if found.name == module and name in classes:
        raise _no_function(name, "a class")


def _no_function(name: str, kind: str) -> RequestError:
    return RequestError(f"{name} is {kind}; give a function of q, k and v, or a module's instance")


def _search_here() -> None:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)


def _absent(module: str) -> RequestError:
    return RequestError(
        f"there is no module {module!r} in {plain_text(os.getcwd())} or among the installed packages; "
        f"run longca in the folder of {module.replace('.', '/')}.py, or install it"
    )


def _raised(module: str, error: BaseException) -> RequestError:
    said = f"{type(error).__name__}: {plain_text(error, 500)}".rstrip(": ")
    return RequestError(f"the import of {module} raised {said}. Repair it, then ask again")


def load(text: str) -> Any:
    """The object that a text such as `my_module:attention` names. The working folder is searched first.

    Raises:
        RequestError: There is no such module, or its import raises.
        UnknownNameError: The module has no such name.
    """
    module, path = names_of(text)
    _search_here()
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise RequestError(f"the import of {module} needs {error.name}, which is not installed") from error
        raise _absent(module) from None
    except (Exception, SystemExit) as error:
        raise _raised(module, error) from error
    for part in path.split("."):
        if not hasattr(found, part):
            names = (name for name, value in vars(found).items() if callable(value) and not name.startswith("_"))
            raise UnknownNameError(f"function of {module}", path, names)
        found = getattr(found, part)
    return found
