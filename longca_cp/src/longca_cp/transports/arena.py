"""Arena: the window of a link that all calls of all plans share, one call after another.

A call begins with the bytes of all tensors that arrive in it, takes a place for each of them, and ends. Peers push into
these places once they know that the rank has begun the call, because earlier calls then no longer read them. Nobody
waits for the end of a call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar, cast

import torch
from torch import Tensor

from longca_cp.transports.link import Link, Moves, Window

__all__ = ["Arena", "Arrival", "Place", "arena_of", "place_bytes"]

T = TypeVar("T")

#: Makes the current stream wait for what peers push. It takes a name of it, for messages.
Arrival = Callable[[str], None]

#: The most times that a call sends.
_MOST_SENDS = 31
#: The most things made of a window's tensors that are remembered.
_MOST_MADE = 256
#: Places begin at multiples of this number of bytes.
_ALIGNED = 256

#: The arenas of living plans.
_ARENAS: weakref.WeakKeyDictionary[Link, weakref.ref[Arena]] = weakref.WeakKeyDictionary()


def arena_of(link: Link) -> Arena:
    """The arena that the living plans of a link share. All ranks of the link call it together."""
    known = _ARENAS.get(link)
    arena = None if known is None else known()
    # Garbage is collected at different times, so an arena is taken only if it lives on all ranks.
    if not all(link.numbers(int(arena is not None))):
        arena = Arena(link)
        _ARENAS[link] = weakref.ref(arena)
    assert arena is not None
    return arena


def place_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that a place of a shape takes."""
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Place:
    """A part of the arena that holds one tensor on each rank, from a first byte on."""

    window: Window
    begin: int

    def of(self, index: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor of the rank at a place on the axis."""
        end = self.begin + prod(shape) * dtype.itemsize
        return self.window.of(index)[self.begin : end].view(dtype).view(*shape)


class Arena:
    """The shared window of a link. All ranks make it together.

    `taken` counts the bytes of the places of the latest call so far. A call may take known places by raising it.
    """

    def __init__(self, link: Link) -> None:
        self._link, self.window = link, None
        self._slots = link.slots(1 + _MOST_SENDS)
        self.taken = self._sent = 0
        self._made: dict[Hashable, object] = {}

    window: Window | None

    def begin(self, nbytes: int) -> None:
        """Begins a call whose places take so many bytes in all, the same on all ranks, which begin it together.

        All lines of work come after what the current stream was given. A window that does not fit on some rank leaves
        the arena empty.
        """
        link = self._link
        if self.window is None or nbytes > self.window.mine.numel():
            self.window, self._made = None, {}  # given back before a larger one is asked for
            self.window = link.window((nbytes,), torch.uint8)
        self.taken = self._sent = 0
        link.restart(self._slots, 1)
        for peer in link.peers:
            link.post(peer, self._slots[0], early=True)
        for peer in link.peers:
            link.expect(peer, self._slots[0], "its next call", pushes=True)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Place:
        """The next place of the call. All ranks take places of the same sizes in the same order."""
        assert self.window is not None, "a call has begun"
        place = Place(self.window, self.taken)
        self.taken += place_bytes(shape, dtype)
        return place

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made of the window's tensors for a key, or is made now. A new window forgets it."""
        if key not in self._made:
            if len(self._made) >= _MOST_MADE:
                self._made.clear()
            self._made[key] = make()
        return cast(T, self._made[key])

    def send(self, moves: Callable[[int], Moves], *, early: bool = False) -> Arrival:
        """Sends this rank's parts of each peer's tensors. All ranks send the same number of times.

        It returns the function that waits until all peers have pushed their parts. See `Link.send` for `early`.
        """
        link = self._link
        self._sent += 1
        slot = self._slots[self._sent]
        for peer in link.peers:
            link.send(peer, moves(peer), slot, early=early)

        def wait(what: str) -> None:
            for peer in link.peers:
                link.expect(peer, slot, what)

        return wait

    def end(self) -> None:
        """Ends a call: the current stream waits for this rank's pushes."""
        self._link.joined()
