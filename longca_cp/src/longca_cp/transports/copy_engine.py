"""The link of GPUs of one host: windows in symmetric memory, filled by the copy engines of their peers.

A push is a strided copy on a stream of its own, beside the kernels. A post is a write to a counter, and `expect` makes
the current stream wait for a counter. None of the three launches a kernel. The counters are in memory of the host. A
thread looks at the counters that a stream waits for. After the deadline it fills the windows with NaN, lets the waiting
stream go on, and makes each later call on the link raise.

Windows come from `torch.distributed._symmetric_memory`. NVLink multicast stays off.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from longca.errors import LongCAError, UnsupportedError
from longca_cp.transports.cuda_driver import Driver
from longca_cp.transports.host_memory import check_all_fit
from longca_cp.transports.link import Link, Slots, Window
from longca_cp.transports.strided import strided_copies

__all__ = ["Awaited", "CopyEngineLink", "Watch"]

T = TypeVar("T")

_log = logging.getLogger("longca")

#: cudaHostRegisterPortable and cudaHostRegisterMapped.
_REGISTER = 1 | 2
#: Seconds for filling windows after a failure on one stream, and the most streams that try.
_FILL, _FILLS = 0.2, 24
#: A byte of which NaN consists.
_NAN = 255
#: Seconds between two looks at the posts that streams wait for.
_LOOK = 0.2
_NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


@dataclass(frozen=True)
class Awaited:
    """A post that a stream waits for. The fields are those of `Link.expect`, with the awaited count."""

    index: int
    slot: int
    count: int
    what: str


class Watch:
    """The posts that a link's streams wait for, in the order of the program, and the thread that looks at them.

    A stream waits without a deadline of its own. Posts count from the end of the wait before, so that work of the
    streams does not count. `lock` is held while the thread looks, and while a wait is added.
    """

    def __init__(self, link: CopyEngineLink) -> None:
        self.lock = threading.Condition()
        self._pending: deque[Awaited] = deque()
        self._stopped, self._since = threading.Event(), time.monotonic()
        weakref.finalize(link, self.stop)
        thread = threading.Thread(target=self._work, args=(weakref.ref(link),), name="longca-link", daemon=True)
        thread.start()

    def add(self, awaited: Awaited) -> None:
        """Adds a wait. The caller holds the lock."""
        if not self._pending:
            self._since = time.monotonic()
        self._pending.append(awaited)
        self.lock.notify_all()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        with self.lock:
            self.lock.notify_all()

    def _work(self, found: weakref.ref[CopyEngineLink]) -> None:
        while not self._stopped.wait(_LOOK):
            with self.lock:
                self.lock.wait_for(lambda: self._pending or self._stopped.is_set())
                if (link := found()) is not None:
                    self._look(link)
                    del link

    def _look(self, link: CopyEngineLink) -> None:
        while self._pending and link.has_come(self._pending[0]):
            self._pending.popleft()
            self._since = time.monotonic()
        if not self._pending:
            return
        first = self._pending[0]
        if time.monotonic() - self._since > link.deadline:
            link.give_up(first, list(self._pending))
            self._pending.clear()


class CopyEngineLink(Link):
    """The link of GPUs, of which each rank has another one. See `Link`."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, deadline: float | None = None) -> None:
        super().__init__(group, device, deadline)
        self._driver = Driver(device)
        self._pushes = torch.cuda.Stream(device, priority=-1)
        self._held: list[Tensor] = []
        self._windows: weakref.WeakSet[Window] = weakref.WeakSet()
        self._addresses = [self._registered(counts.ctypes.data, counts.nbytes) for counts in self._counters.arrived]
        self._watch = Watch(self)

    @staticmethod
    def lack(device: torch.device) -> str:
        """The reason why this process can have no links of a GPU, as the end of a sentence. An empty text if it can."""
        if torch.version.hip:
            return "computes with ROCm, and the copy engines are those of CUDA"
        try:
            from torch.distributed import _symmetric_memory as symmetric

            # Releases of PyTorch without the function have no other backend.
            backend = symmetric.get_backend(device) if hasattr(symmetric, "get_backend") else None
            Driver(device)
        except (ImportError, AttributeError, RuntimeError, LongCAError) as error:
            return f"has no symmetric memory: {error}"
        return "" if backend in (None, "CUDA") else f"has symmetric memory of {backend}; unset TORCH_SYMMMEM"

    def _window(self, shape: Sequence[int], dtype: torch.dtype) -> Window:
        """See `Link.window`. PyTorch's allocator gives unused memory back if need be."""
        length = prod(shape) * dtype.itemsize
        memory = self._together(length, "it does not fit", lambda: self._allocated(max(length, 16)))
        buffers, handle = self._together(length, "peers cannot map it", lambda: self._mapped(memory))
        views = tuple(buffer[:length].view(dtype).view(*shape) for buffer in buffers)
        window = Window(views, self.index, handle)
        self._windows.add(window)
        return window

    def restart(self, slots: Slots, most: int) -> None:
        """See `Link.restart`. It refuses to capture a CUDA graph, whose replays would not wait for peers."""
        if torch.cuda.is_current_stream_capturing():
            raise UnsupportedError(
                "a CUDA graph cannot hold a call by the copy engine, because the host counts its posts; give "
                "transport='collectives', or leave attention under a strategy out of the graph"
            )
        if self._pushes.query():
            self._held.clear()  # what a call that failed has left
        super().restart(slots, most)

    def joined(self) -> None:
        """Makes the current stream wait for the pushes."""
        self._check()
        self._driver.follow(self._kernels, self._pushes.cuda_stream)
        self._held.clear()

    def _follow(self) -> None:
        self._driver.follow(self._pushes.cuda_stream, self._kernels)

    @property
    def _kernels(self) -> int:
        """The handle of the current stream."""
        return int(torch._C._cuda_getCurrentRawStream(self.device.index))

    def _push(self, index: int, into: Tensor, source: Tensor) -> None:
        self._held.append(source)
        copies = strided_copies(into, source)
        if copies is not None:
            self._driver.copy(copies, into.data_ptr(), source.data_ptr(), self._pushes.cuda_stream)
        else:
            with torch.cuda.stream(self._pushes), torch.no_grad():
                into.copy_(source)

    def _post(self, index: int, slot: int, count: int) -> None:
        self._driver.write(self._address(index, self.index, slot), count, self._pushes.cuda_stream)

    def _expect(self, index: int, slot: int, count: int, what: str, pushes: bool) -> None:
        with self._watch.lock:
            self._check()
            stream = self._pushes.cuda_stream if pushes else self._kernels
            self._driver.wait(self._address(self.index, index, slot), count, stream)
            self._watch.add(Awaited(index, slot, count, what))

    def _address(self, receiver: int, sender: int, slot: int) -> int:
        counts = self._counters.arrived[receiver]
        return self._addresses[receiver] + sender * counts.strides[0] + slot * counts.strides[1]

    def _together(self, nbytes: int, because: str, make: Callable[[], T]) -> T:
        """The result of a function that succeeds on all ranks."""
        made, failed = None, None
        try:
            made = make()
        except RuntimeError as error:
            failed = str(error).splitlines()[0]
        check_all_fit(self._group, nbytes, failed, because)
        return cast(T, made)

    def _mapped(self, memory: Tensor) -> tuple[list[Tensor], object]:
        """The memory of all ranks, and the handle that keeps it mapped."""
        from torch.distributed import _symmetric_memory as symmetric

        with _without_multicast():
            handle = symmetric.rendezvous(memory, self._group)
        others = (handle.get_buffer(peer, tuple(memory.shape), memory.dtype) for peer in range(self.size))
        return [memory if peer == self.index else other for peer, other in enumerate(others)], handle

    def _allocated(self, nbytes: int) -> Tensor:
        from torch._C._distributed_c10d import _SymmetricMemory

        # `_symmetric_memory.empty` takes memory from a pool, which does not give it back.
        make = _SymmetricMemory.empty_strided_p2p
        asked = torch.Size((nbytes,)), torch.Size((1,)), torch.uint8, self.device
        try:
            made = make(*asked)
        except RuntimeError:
            torch.cuda.empty_cache()
            made = make(*asked)
        made.fill_(_NAN)  # loads the kernel, which may not be possible any more while a stream waits
        torch.cuda.current_stream(self.device).synchronize()  # peers write to it from now on
        return made

    def _registered(self, host: int, nbytes: int) -> int:
        """The address by which the GPU reaches memory of the host."""
        runtime = torch.cuda.cudart()
        with torch.cuda.device(self.device):
            status = int(runtime.cudaHostRegister(host, nbytes, _REGISTER))
        if status:
            raise LongCAError(f"the counters of a link cannot be registered with the GPU: error {status}")
        # The counters live in the finalizer until they are no longer registered.
        weakref.finalize(self, _unregister, self.device, host, self._counters).atexit = False
        return self._driver.address(host)

    def has_come(self, awaited: Awaited) -> bool:
        """Whether a post has come."""
        return not self._counters.missing(awaited.index, awaited.slot, awaited.count)

    def give_up(self, awaited: Awaited, others: list[Awaited]) -> None:
        """Ends all waits, and makes their results NaN. Ends the process if it cannot, because results would be old."""
        self._failure = self._late(awaited.index, awaited.what)
        _log.error("attention: %s", self._failure)
        if not any(self._filled(turn) for turn in range(_FILLS)):
            _log.critical("attention: the results of the call cannot be made NaN, so this process ends")
            os.abort()
        for each in others:
            self._counters.arrived[self.index][each.index, each.slot] = each.count

    def _filled(self, turn: int) -> bool:
        """Whether a stream has filled all windows with NaN. Each try takes another stream, as one may wait."""
        stream = torch.cuda.Stream(self.device, priority=-(turn % 2))
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            for window in list(self._windows):
                window.mine.view(torch.uint8).fill_(_NAN)
            done = stream.record_event()
        end = time.monotonic() + _FILL
        while not (is_done := done.query()) and time.monotonic() < end:
            time.sleep(_FILL / 20)
        return is_done


def _unregister(device: torch.device, host: int, _counters: object) -> None:
    torch.cuda.synchronize(device)  # the last calls may still write counters
    torch.cuda.cudart().cudaHostUnregister(host)


@contextmanager
def _without_multicast() -> Iterator[None]:
    before = os.environ.get(_NO_MULTICAST)
    os.environ[_NO_MULTICAST] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_MULTICAST]
        else:
            os.environ[_NO_MULTICAST] = before
