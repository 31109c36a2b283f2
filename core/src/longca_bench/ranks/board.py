"""The board: named values that the processes of a job leave for each other in the job's store.

Assignments have numbers. The leader posts `assignment/N`, or None after the last one. Each member posts `ready/N/RANK`
when its worker runs, and then `answer/N/RANK`. After a failure the leader posts `stop/N` to the members that have not
answered. A member that goes posts `gone/RANK`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]  # they are, and documented
    DistNetworkError,
    PrefixStore,
    Store,
    TCPStore,
)

from longca.errors import LongCAError
from longca_bench.measuring.messages import Result, Setup, from_json, to_json
from longca_bench.ranks.job import LOOPBACK
from longca_bench.suites.tasks import Task

__all__ = ["Assignment", "Board", "BoardLostError", "RankResult", "open_store", "serve_store"]

_PAUSE = 0.02  # seconds between two looks
#: Seconds in which all processes of a job must reach its store.
_JOIN = timedelta(seconds=300)


@dataclass(frozen=True)
class Assignment:
    """The next task of all ranks. A new number of the world makes members start new processes."""

    setup: Setup
    world: int
    task: Task


@dataclass(frozen=True)
class RankResult:
    """The result of a task on one rank, or None if it was stopped, with the last phase and the number of phases."""

    result: Result | None
    phase: str
    phases: int


class BoardLostError(LongCAError):
    """The store is gone, and the process that opened it."""


class Board:
    """Named values that every process of the job can read. They are JSON: anyone who reaches the store can write one.

    Without the process that opened the store, every method raises BoardLostError.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(self, name: str, value: Any) -> None:
        """Leaves a value."""
        with _connected():
            self._store.set(name, to_json(value))  # type: ignore[arg-type]  # bytes do as well

    def has(self, name: str) -> bool:
        """Whether there is a value of the name."""
        with _connected():
            return bool(self._store.check([name]))

    def read(self, name: str, kind: Any) -> Any:
        """The value of the name, which has a type. Waits until there is one. Another type is a LongCAError."""
        while not self.has(name):
            time.sleep(_PAUSE)
        with _connected():
            value = self._store.get(name)
        try:
            return from_json(value, kind)
        except ValueError:
            raise LongCAError(
                f"{name} in this job's store is not what LongCA writes there, so another program wrote it; the records "
                "so far are kept. Find out who reaches the store"
            ) from None


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except DistNetworkError as lost:
        raise BoardLostError(
            "the process that started this job, or its rank 0, is gone; the records so far are kept. "
            "To go on, add to the command: --resume --out, and the run's folder"
        ) from lost


def serve_store(host: str, port: int = 0) -> TCPStore:
    """Opens a job's store, which ends with the object. On LOOPBACK it listens there alone. Port 0 is any free one."""
    fd = None
    if host == LOOPBACK:  # PyTorch's own socket would listen on all addresses
        listener = socket.create_server((host, port))
        port = listener.getsockname()[1]
        fd = listener.detach()
    return TCPStore(host, port, is_master=True, timeout=_JOIN, wait_for_workers=False, master_listen_fd=fd)


def open_store(host: str, port: int) -> Store:
    """A connection to a job's store. Each thread and each process needs its own."""
    store = TCPStore(host, port, timeout=_JOIN, wait_for_workers=False)
    # A restarted job must not find the values of the job before.
    return PrefixStore(f"longca/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
