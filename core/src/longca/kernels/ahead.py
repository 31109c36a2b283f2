"""ahead: plans that a side thread makes before their first use, while the device computes.

One thread makes them in the order in which they were asked for. A thread that needs a plan before the side thread has
begun with it makes it at once. A thread that needs a plan under way waits for it. So no plan is made twice.

Work that is done ahead starts no collective. A process group takes its collectives from one thread, in the order of
the program. A strategy calls `check_not_ahead` before a collective of its own planning.

Plans of CUDA devices are made on a stream of their own, and the side thread waits for that stream before it shows a
plan. The stream has a high priority, or its many small kernels would each wait until a large kernel of the step has
begun all its programs. The plan's memory belongs to the side stream. When a plan is dropped, the side stream waits for
the user's stream, and only then reuses the memory.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import cache
from queue import SimpleQueue
from typing import Any

import torch

from longca.errors import LongCAError

__all__ = ["NotAheadError", "Prefetch", "ask", "check_not_ahead", "is_ahead", "take"]

#: Plans that may wait for their first use. A further one drops the oldest.
_MOST_KEPT = 64
#: Seconds that the end of the process waits for the plan under way.
_LAST = 5.0

#: Whether this thread does work ahead.
_here = threading.local()


class NotAheadError(LongCAError):
    """Work that is done ahead came to a collective, which belongs to the call."""


def is_ahead() -> bool:
    """Whether this thread plans ahead of a call, perhaps beside a thread that computes."""
    return bool(getattr(_here, "is_ahead", False))


def check_not_ahead(what: str) -> None:
    """Raises NotAheadError if the collective `what` would run ahead of its call."""
    if is_ahead():
        raise NotAheadError(f"{what} is a collective call, and longca.prefetch leaves these to longca.attention")


class Prefetch:
    """A plan that `longca.prefetch` has asked for.

    Args:
        make: Makes the plan, or an object that holds it as `plan`. None stands for a plan that cannot be made ahead.
        device: The device of its tensors.
    """

    def __init__(self, make: Callable[[], Any], device: torch.device) -> None:
        self._make: Callable[[], Any] | None = make
        self.device, self._lock, self._finished = device, threading.Lock(), threading.Event()
        self._made: Any = None
        self._error: BaseException | None = None
        self._side: torch.cuda.Stream | None = None
        self._user = None if device.type == "cpu" else torch.cuda.current_stream(device)

    def done(self) -> bool:
        """Whether planning has ended, well or with an error."""
        return self._finished.is_set()

    def wait(self) -> None:
        """Waits until the plan is there and all its memory is written.

        A call waits by itself, and may make the plan itself. Call this before a CUDA graph is captured.

        Raises:
            LongCAError: As in `longca.attention`. The plan could not be made.
        """
        self.run()
        if self._error is not None:
            raise self._error

    def run(self, side: torch.cuda.Stream | None = None) -> None:
        """Makes the plan, on the side stream if given, unless a thread has begun with it. Then it waits for that."""
        with self._lock:
            if self._make is None:
                return
            _here.is_ahead = True
            try:
                with nullcontext() if side is None else torch.cuda.stream(side):
                    self._made = self._make()
                if side is not None:
                    side.synchronize()
                    self._side = side
                    self._follow(self._user)
            except BaseException as error:  # a plugin may raise anything; the thread that asks for the plan raises it
                self._error = error
            finally:
                _here.is_ahead = False
            self._make = None  # it holds the mask
            self._finished.set()

    def taken(self) -> Any:
        """The plan, for work of the current stream, or None if it cannot be made ahead. It raises as `wait` does."""
        self.wait()
        if self._side is not None and (user := torch.cuda.current_stream(self.device)) != self._user:
            self._follow(user)
        made, self._made = self._made, None
        return made

    def _follow(self, user: torch.cuda.Stream | None) -> None:
        """Keeps the plan's memory from the side stream until the work that reads it on a stream has ended."""
        if self._made is not None and self._side is not None and user is not None:
            weakref.finalize(self._made.plan, _wait_for, self._side, user).atexit = False


def _wait_for(side: torch.cuda.Stream, user: torch.cuda.Stream) -> None:
    if not torch.cuda.is_current_stream_capturing():
        side.wait_stream(user)


_lock = threading.Lock()
_asked: OrderedDict[Hashable, Prefetch] = OrderedDict()
_queue: SimpleQueue[Prefetch | None] = SimpleQueue()
_thread: threading.Thread | None = None
_ended = threading.Event()


def ask(key: Hashable, make: Callable[[], Any], device: torch.device) -> Prefetch:
    """Asks the side thread for a plan, which `make` makes without collectives. The same plan is asked for once.

    The key is that of the mask, and everything else that the plan depends on.
    """
    global _thread
    with _lock:
        if (found := _asked.get(key)) is not None:
            return found
        asked = _asked[key] = Prefetch(make, device)
        if len(_asked) > _MOST_KEPT:
            _asked.popitem(last=False)
        if _thread is None or not _thread.is_alive():  # a forked process has no side thread
            _thread = threading.Thread(target=_serve, name="longca-prefetch", daemon=True)
            _thread.start()
    _queue.put(asked)
    return asked


def take(key: Hashable) -> Prefetch | None:
    """The request for a plan, which is then forgotten. None if nobody asked for it."""
    with _lock:
        return _asked.pop(key, None)


def _serve() -> None:
    while (asked := _queue.get()) is not None and not _ended.is_set():
        asked.run(_stream(asked.device) if asked.device.type == "cuda" else None)
        del asked  # nothing is held until the next request


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)


@atexit.register
def _end() -> None:
    """Drops the waiting requests, and waits for the plan under way."""
    _ended.set()
    _queue.put(None)
    if _thread is not None:
        _thread.join(_LAST)
