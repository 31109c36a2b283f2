"""ahead: plans that a side thread makes before their first use, while the device computes.

One thread makes them in the order in which they were asked for. A thread that needs a plan before the side thread has
begun with it makes it at once. A thread that needs a plan under way waits for it. So no plan is made twice.

Work that is done ahead starts no collective. A process group takes its collectives from one thread, in the order of
the program. A strategy calls `check_not_ahead` before a collective of its own planning.

Plans of CUDA devices are made on a stream of their own, and the side thread waits for that stream before it shows a
plan. So neither the caller's host nor its stream waits for anything. The stream has a high priority, or its many small
kernels would each wait until a large kernel of the step has begun all its programs. Copies to the device need no pinned
memory here, because a stream without other work copies at once. The plan's memory belongs to the side stream. When a
plan is dropped, the side stream waits for the user's stream, and only then reuses the memory.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from queue import Empty, Queue
from typing import Any, Protocol

import torch

from longca.errors import LongCAError

__all__ = ["MOST_KEPT", "MOST_WAITING", "NotAheadError", "Prefetch", "ask", "check_not_ahead", "is_ahead", "take"]

#: Requests that may wait for the side thread. A further request waits for room.
MOST_WAITING = 16
#: Plans that may wait for their first use. A further one drops the oldest.
MOST_KEPT = 64
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
    """Checks that a collective does not run ahead of its call.

    Args:
        what: The collective, for the message.

    Raises:
        NotAheadError: It would.
    """
    if is_ahead():
        raise NotAheadError(f"{what} is a collective call, and longca.prefetch leaves these to longca.attention")


class _HasPlan(Protocol):
    """A result that holds a plan, which owns the result's memory."""

    @property
    def plan(self) -> object: ...


class Prefetch:
    """A plan that `longca.prefetch` has asked for.

    Args:
        make: Makes the plan. None stands for a plan that cannot be made ahead.
        device: The device of its tensors.
    """

    def __init__(self, make: Callable[[], _HasPlan | None], device: torch.device) -> None:
        self._make: Callable[[], _HasPlan | None] | None = make
        self._device, self._lock, self._finished = device, threading.Lock(), threading.Event()
        self._made: _HasPlan | None = None
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
        self._check()

    def run(self, side: torch.cuda.Stream | None = None) -> None:
        """Makes the plan if no thread has begun with it, or waits for the thread that has.

        Args:
            side: The stream to make it on. None for the current stream.
        """
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
        """The plan, for work of the current stream. None if it cannot be made ahead.

        Raises:
            LongCAError: The plan could not be made.
        """
        self.run()
        self._check()
        if self._side is not None and (user := torch.cuda.current_stream(self._device)) != self._user:
            self._follow(user)
        made, self._made = self._made, None
        return made

    def _follow(self, user: torch.cuda.Stream | None) -> None:
        """Keeps the plan's memory from the side stream until the work that reads it on a stream has ended."""
        if self._made is not None and self._side is not None and user is not None:
            weakref.finalize(self._made.plan, _follow, self._side, user).atexit = False

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def _follow(side: torch.cuda.Stream, user: torch.cuda.Stream) -> None:
    """Makes the side stream wait for the work that reads a plan, before it reuses the plan's memory."""
    if not torch.cuda.is_current_stream_capturing():
        side.wait_stream(user)


class _Side:
    """The side thread, its queue, and the plans that wait for their first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: OrderedDict[Hashable, Prefetch] = OrderedDict()
        self._queue: Queue[tuple[Prefetch, torch.device] | None] = Queue(MOST_WAITING)
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._thread: threading.Thread | None = None

    def ask(self, key: Hashable, make: Callable[[], _HasPlan | None], device: torch.device) -> Prefetch:
        with self._lock:
            if (found := self._asked.get(key)) is not None:
                return found
            asked = self._asked[key] = Prefetch(make, device)
            if len(self._asked) > MOST_KEPT:
                self._asked.popitem(last=False)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="longca-prefetch", daemon=True)
                self._thread.start()
        self._queue.put((asked, device))
        return asked

    def take(self, key: Hashable) -> Prefetch | None:
        with self._lock:
            return self._asked.pop(key, None)

    def end(self) -> None:
        """Drops what waits, and waits for the plan under way."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._asked.clear()
        if thread is None:
            return
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            self._queue.put(None)
        thread.join(_LAST)

    def _serve(self) -> None:
        while (asked := self._queue.get()) is not None:
            prefetch, device = asked
            prefetch.run(self._stream(device))
            del asked, prefetch  # nothing is held until the next request

    def _stream(self, device: torch.device) -> torch.cuda.Stream | None:
        if device.type != "cuda":
            return None
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device, priority=-1)
        return self._streams[device]


_side = _Side()


def ask(key: Hashable, make: Callable[[], _HasPlan | None], device: torch.device) -> Prefetch:
    """Asks the side thread for a plan. A plan that was asked for before is not asked for again.

    Args:
        key: The mask's key, and everything else that the plan depends on.
        make: Makes the plan, without collectives.
        device: The device of its tensors.
    """
    return _side.ask(key, make, device)


def take(key: Hashable) -> Prefetch | None:
    """The request for a plan, which is then forgotten. None if nobody asked for it."""
    return _side.take(key)


def _end() -> None:
    _side.end()


def _begin_anew() -> None:
    """A forked process has no side thread, and may have inherited its locks."""
    global _side
    _side = _Side()


atexit.register(_end)
os.register_at_fork(after_in_child=_begin_anew)
