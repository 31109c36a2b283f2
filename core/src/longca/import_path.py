"""The code that processes of LongCA import: none of the working folder, and none that others ask pydantic or torch for.

Any distribution can have an entry point that pydantic or torch imports when it is imported itself. Two variables switch
that off. They are read at that import, so they reach no process of the user's that has imported both before LongCA.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["import_path", "leave_working_folder", "safe_environment", "safe_python", "safely_spawned"]

_SAFE = "PYTHONSAFEPATH"
_NO_ENTRY_POINTS = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def import_path() -> list[str]:
    """`sys.path` without the entry that Python's -m, -c and prompt put first: the working folder.

    An entry that stands elsewhere, such as one of PYTHONPATH, was asked for and stays. So does the folder of this
    package, without which nothing works.
    """
    kept = list(sys.path)
    if kept and not sys.flags.safe_path and _is_working_folder(kept[0]):
        del kept[0]
    return [entry for entry in kept if entry]


def leave_working_folder() -> None:
    """Takes the working folder off this process's `sys.path`. Python's -P does it earlier."""
    sys.path[:] = import_path()


def safe_python(*arguments: str) -> list[str]:
    """A command that starts this Python without the working folder on its `sys.path`: every start of LongCA's."""
    return [sys.executable, "-P", *arguments]


def safe_environment() -> dict[str, str]:
    """This process's environment, for a process in which pydantic and torch import no entry points of their own.

    A variable that the user has set keeps its value.
    """
    return {**_NO_ENTRY_POINTS, **os.environ}


@contextmanager
def safely_spawned() -> Iterator[None]:
    """Processes that `multiprocessing` spawns in this context start with `safe_python` and `safe_environment`.

    `multiprocessing` passes -P on only if this process has it, and a script such as `longca` has not.
    """
    before = dict(os.environ)
    wanted = {**safe_environment(), _SAFE: "1"}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update({_SAFE: before[_SAFE]} if _SAFE in before else {})


def _is_working_folder(entry: str) -> bool:
    if not entry:
        return True
    with suppress(OSError):
        return os.path.samefile(entry, os.getcwd()) and not os.path.samefile(entry, Path(__file__).parents[1])
    return False
