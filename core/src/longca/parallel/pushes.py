"""Pushes: copies into the memory of peers. A transport tells of them, so that somebody can count and repeat them.

It also tells of its windows, the memory that peers push into, because PyTorch's allocator may know nothing of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Push", "is_watched", "note_pushing", "pushing", "tell", "tell_window", "watched", "window_bytes"]


@dataclass(frozen=True)
class Push:
    """One push.

    Attributes:
        source: The pushed tensor.
        leaves: Whether it goes to another rank.
        start: Pushes a tensor like the source to the same place. No peer is told.
        join: Makes the current stream wait for all pushes of the transport so far.
    """

    source: Tensor
    leaves: bool
    start: Callable[[Tensor], None]
    join: Callable[[], None]


_WATCHERS: list[list[Push]] = []
#: Whoever wants to know whether this process is making pushes: one at most.
_NOTES: list[Callable[[bool], None]] = []
#: The bytes of living windows.
_WINDOWS: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()


def is_watched() -> bool:
    """Whether somebody wants to be told of pushes."""
    return bool(_WATCHERS)


def tell(push: Push) -> None:
    """Tells of a push, before it begins."""
    for watcher in _WATCHERS:
        watcher.append(push)


@contextmanager
def watched() -> Iterator[list[Push]]:
    """A list to which every push is added, of all threads, until the context ends."""
    pushes: list[Push] = []
    _WATCHERS.append(pushes)
    try:
        yield pushes
    finally:
        _WATCHERS[:] = [watcher for watcher in _WATCHERS if watcher is not pushes]


@contextmanager
def pushing() -> Iterator[None]:
    """A transport makes pushes within it. It waits for no peer there, so a process that stays there hangs by itself."""
    for note in _NOTES:
        note(True)
    try:
        yield
    finally:
        for note in _NOTES:
            note(False)


def note_pushing(note: Callable[[bool], None]) -> None:
    """Calls a function with True where pushes of this process begin, and with False where they end, from now on."""
    _NOTES[:] = [note]


def tell_window(window: object, nbytes: int) -> None:
    """Tells of a window of this rank, until the object is gone, with its bytes outside of PyTorch's allocator."""
    _WINDOWS[window] = nbytes


def window_bytes() -> int:
    """Bytes of this rank's living windows. All calls and plans of a mesh share them."""
    return sum(list(_WINDOWS.values()))
