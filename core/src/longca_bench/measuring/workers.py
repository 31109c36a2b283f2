"""Workers: a judge's way to kernels that run in other processes.

A worker runs one kernel, or one pair. It loads the plugins of one distribution, or of two for a pair of kernels from
two. It starts when it is first needed, and again after it was lost. While one worker computes, the others are stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from longca_bench.measuring.arena import Arena
from longca_bench.measuring.commands import WorkerSetup
from longca_bench.measuring.keeping import Keeper
from longca_bench.measuring.remote_worker import RemoteWorker

__all__ = ["Workers"]

#: Processes that a judge keeps alive. On a GPU each has a context of about half a GB.
MOST_ALIVE = 16
#: Bytes of shared memory without a tensor that are kept for later cases.
MOST_KEPT = 2**28


class Workers:
    """The workers of a judge, by their distributions.

    Args:
        keeper: The keeper that starts them.
        device: The device that the judge and its workers compute on.
        memory: Bytes of address space that each worker may take, or None for no limit.

    Attributes:
        arena: The memory that the judge shares with them.
        deadline: When the case must have ended, by the monotonic clock. None without a deadline.
    """

    def __init__(self, keeper: Keeper, device: torch.device, memory: int | None = None) -> None:
        self.arena = Arena(device)
        self.deadline: float | None = None
        self._keeper, self._device, self._memory = keeper, device, memory
        self._workers: dict[tuple[frozenset[str], str], RemoteWorker] = {}

    def of(self, distributions: Iterable[str], kernel: str = "") -> RemoteWorker:
        """The worker that loads the plugins of some distributions, and of no other.

        Args:
            distributions: The distributions.
            kernel: The kernel that has the worker for itself, or an empty text for a worker that runs a strategy.
        """
        wanted = frozenset(distributions)
        if (wanted, kernel) not in self._workers:
            setup = WorkerSetup(str(self._device), wanted, self._memory)
            self._workers[wanted, kernel] = RemoteWorker(self, self._keeper, setup)
        worker = self._workers[wanted, kernel] = self._workers.pop((wanted, kernel))  # the last one is the latest
        for other in list(self._workers.values())[:-MOST_ALIVE]:
            other.end()
        return worker

    @property
    def keep_memory(self) -> bool:
        """Whether workers run that keep memory of a CUDA device, which another one may lack."""
        return self._device.type == "cuda" and any(worker.is_running for worker in self._workers.values())

    def alone(self, worker: RemoteWorker) -> None:
        """Stops all workers but one."""
        for other in self._workers.values():
            if other is not worker:
                other.rest()

    def trim(self) -> None:
        """Gives shared memory back that no tensor is in, if it is much. New memory costs time in every process."""
        if self.arena.unused_bytes <= MOST_KEPT:
            return
        numbers = self.arena.unused
        for worker in self._workers.values():
            worker.unmap(numbers)
        self.arena.trim()

    def end(self) -> None:
        """Ends all workers. They start again at need."""
        for worker in self._workers.values():
            worker.end()

    def close(self) -> None:
        """Ends all workers, and their keeper."""
        self.end()
        self._keeper.close()
