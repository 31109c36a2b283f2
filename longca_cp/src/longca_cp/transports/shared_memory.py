"""The link of CPUs: windows in memory that the processes of a host share, and one thread that does a rank's pushes.

It stands in for the copy engines of GPUs. Pushes to several peers interleave, and pushes to one peer between two posts
may end in any order. A seed draws such an order, so that tests find programs that rely on another.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from longca_cp.transports.host_memory import everyones_memory
from longca_cp.transports.link import Link, PeerError, Window

__all__ = ["SharedMemoryLink"]

#: Seconds between two looks at a counter: at first, and at most.
_SOON, _LATER = 2e-5, 1e-3


#: Work for the thread, and whether it comes after all earlier work for the same peer, as a post does.
_Task = tuple[Callable[[], object], bool]


class _Pusher:
    """The thread of a link, which does tasks for each peer in an order that a seed draws."""

    def __init__(self, peers: int, seed: int) -> None:
        self._tasks: list[deque[_Task]] = [deque() for _ in range(peers)]
        self._came: deque[int] = deque()
        self._random = random.Random(seed)
        self._changed, self._busy, self._stopped = threading.Condition(), False, False
        self.failure: Exception | None = None
        threading.Thread(target=self._work, name="longca-link", daemon=True).start()

    def add(self, peer: int, task: _Task) -> None:
        """Gives the thread a task."""
        with self._changed:
            self._tasks[peer].append(task)
            self._came.append(peer)
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until all tasks are done."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or not (self._came or self._busy))

    def stop(self) -> None:
        """Ends the thread once its tasks are done, because peers wait for them. After a failure it ends at once."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                with torch.no_grad():
                    task[0]()
            except Exception as error:
                self.failure = error
                self.stop()
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._came)
            if self.failure is not None or not self._came:
                return None
            self._busy = True
            peer = self._random.choice(self._came)
            self._came.remove(peer)
            tasks = self._tasks[peer]
            until_post = next((at for at, (_, is_post) in enumerate(tasks) if is_post), len(tasks))
            at = self._random.randrange(max(until_post, 1))
            task = tasks[at]
            del tasks[at]
            return task


class SharedMemoryLink(Link):
    """The link of CPUs. See `Link`.

    A seed draws an order of pushes that the contract allows. None takes the environment's LONGCA_PUSH_SEED, or else 0.
    """

    def __init__(self, group: dist.ProcessGroup, deadline: float | None = None, seed: int | None = None) -> None:
        super().__init__(group, torch.device("cpu"), deadline)
        seed = int(os.environ.get("LONGCA_PUSH_SEED", "0")) if seed is None else seed
        self._pusher = _Pusher(self.size, seed + self.index)
        weakref.finalize(self, self._pusher.stop)

    def _window(self, shape: Sequence[int], dtype: torch.dtype) -> Window:
        memory = everyones_memory(self._group, prod(shape) * dtype.itemsize)
        return Window(tuple(each.view(dtype).view(*shape) for each in memory), self.index)

    def joined(self) -> None:
        """Waits for the thread."""
        self._check()
        self._pusher.wait()
        self._check()

    def _follow(self) -> None:
        """The host has done everything."""

    def _push(self, index: int, into: Tensor, source: Tensor) -> None:
        self._pusher.add(index, (lambda: into.copy_(source), False))

    def _post(self, index: int, slot: int, count: int) -> None:
        counts, mine = self._counters.arrived[index], self.index
        self._pusher.add(index, (lambda: counts.__setitem__((mine, slot), count), True))

    def _expect(self, index: int, slot: int, count: int, what: str, pushes: bool) -> None:
        begin, pause = time.monotonic(), _SOON
        while self._counters.missing(index, slot, count):
            if time.monotonic() - begin > self.deadline:
                self._failure = self._late(index, what)
            self._check()
            time.sleep(pause)
            pause = min(2 * pause, _LATER)

    def _check(self) -> None:
        if self._pusher.failure is not None:
            self._failure = PeerError(f"a push failed: {self._pusher.failure}")
        super()._check()
