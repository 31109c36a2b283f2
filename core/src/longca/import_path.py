"""The folders that processes of LongCA import from: `sys.path` without the working folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["import_path", "leave_working_folder", "safe_python", "safely_spawned"]

_SAFE = "PYTHONSAFEPATH"


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


@contextmanager
def safely_spawned() -> Iterator[None]:
    """Processes that `multiprocessing` spawns in this context start as `safe_python` does.

    `multiprocessing` passes -P on only if this process has it, and a script such as `longca` has not.
    """
    before = os.environ.get(_SAFE)
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE]
        os.environ.update({} if before is None else {_SAFE: before})


def _is_working_folder(entry: str) -> bool:
    if not entry:
        return True
    with suppress(OSError):
        return os.path.samefile(entry, os.getcwd()) and not os.path.samefile(entry, Path(__file__).parents[1])
    return False
