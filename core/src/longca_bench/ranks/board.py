"""Board: what the processes of a job leave for each other in its store, by name.

For each assignment in turn the leader leaves what to do, members that their workers are ready and what came of it, and
the leader again that those who have not answered are to stop.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import DistNetworkError, Store  # type: ignore[attr-defined]  # they are, and documented

from longca.errors import LongCAError

__all__ = ["Board", "BoardLostError", "answer", "assignment", "gone", "ready", "stop"]

_PAUSE = 0.02  # seconds between two looks


class BoardLostError(LongCAError):
    """The store is gone, and whoever opened it."""


class Board:
    """Named values that every process of the job can read.

    Values are pickled: they come from processes of the same job, which run the same code for the same user.

    Args:
        store: A connection to the job's store.

    Raises:
        BoardLostError: From every method, where the process that opened the store has ended.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, name: str, value: Any) -> None:
        """Leaves a value."""
        with _connected():
            self._store.set(name, pickle.dumps(value))  # type: ignore[arg-type]  # bytes do as well

    def has(self, name: str) -> bool:
        """Whether there is a value of the name."""
        with _connected():
            return bool(self._store.check([name]))

    def read(self, name: str) -> Any:
        """The value of the name, as soon as there is one."""
        while not self.has(name):
            time.sleep(_PAUSE)
        with _connected():
            return pickle.loads(self._store.get(name))


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except DistNetworkError as lost:
        raise BoardLostError(
            "the process that started this job, or its rank 0, is gone; the records so far are kept. "
            "To go on, add to the command: --resume --out, and the run's folder"
        ) from lost


def assignment(number: int) -> str:
    """What ranks are to do, by its number; None for nothing more."""
    return f"assignment/{number}"


def ready(number: int, rank: int) -> str:
    """That a rank's worker is running."""
    return f"ready/{number}/{rank}"


def answer(number: int, rank: int) -> str:
    """What came of it on a rank."""
    return f"answer/{number}/{rank}"


def stop(number: int) -> str:
    """That ranks which have not answered are to end it."""
    return f"stop/{number}"


def gone(rank: int) -> str:
    """That a rank has ended its worker, and does nothing more."""
    return f"gone/{rank}"
