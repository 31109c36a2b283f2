"""Arena: the window of a link that all calls of all plans share, one call after another.

A call begins with the bytes of all tensors that arrive in it, takes a place for each of them, and ends. Peers push into
these places once they know that the rank has begun the call, because earlier calls then no longer read them. Nobody
waits for the end of a call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from longca_cp.transports.link import Link, Moves, Window

__all__ = ["Arena", "Place", "arena_of", "place_bytes"]

#: The most times that a call sends.
_MOST_SENDS = 31
#: Places begin at multiples of this number of bytes.
_ALIGNED = 256

#: The arenas of living plans.
_ARENAS: weakref.WeakKeyDictionary[Link, weakref.ref[Arena]] = weakref.WeakKeyDictionary()


def arena_of(link: Link) -> Arena:
    """The arena that the living plans of a link share. All ranks of the link call it together."""
    known = _ARENAS.get(link)
    arena = None if known is None else known()
    # Garbage is collected at different times, so an arena is taken only if it lives on all ranks.
    if not all(link.told(int(arena is not None))):
        arena = Arena(link)
        _ARENAS[link] = weakref.ref(arena)
    assert arena is not None
    return arena


def place_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that a place of a shape takes."""
    return -(-prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


@dataclass(frozen=True)
class Place:
    """A part of the arena that holds one tensor on each rank.

    Attributes:
        window: The arena's window.
        begin: The first byte.
    """

    window: Window
    begin: int

    def of(self, index: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The tensor of the rank at a place on the axis."""
        end = self.begin + prod(shape) * dtype.itemsize
        return self.window.of(index)[self.begin : end].view(dtype).view(*shape)


class Arena:
    """The shared window of a link. All ranks make it together.

    Args:
        link: The link.
    """

    def __init__(self, link: Link) -> None:
        self._link, self._window = link, None
        self._slots = link.slots(1 + _MOST_SENDS)
        self._taken = self._sent = 0

    _window: Window | None

    def begin(self, nbytes: int) -> None:
        """Begins a call, after everything that the current stream was given. All ranks of the link begin it together.

        Args:
            nbytes: The sum of `place_bytes` of the call's places, the same on all ranks.

        Raises:
            WindowMemoryError: The window does not fit on some rank. The arena is empty then.
            PeerError: A peer has failed.
        """
        link = self._link
        if self._window is None or nbytes > self._window.mine.numel():
            self._window = None  # given back before a larger one is asked for
            self._window = link.window((nbytes,), torch.uint8)
        self._taken = self._sent = 0
        link.restart(self._slots, 1)
        for peer in link.peers:
            link.post(peer, self._slots[0])
        for peer in link.peers:
            link.expect(peer, self._slots[0], "its next call", ahead=True)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Place:
        """The next place of the call. All ranks take places of the same sizes in the same order."""
        assert self._window is not None, "a call has begun"
        place = Place(self._window, self._taken)
        self._taken += place_bytes(shape, dtype)
        return place

    def send(self, moves: Callable[[int], Moves]) -> Callable[[str], None]:
        """Sends this rank's parts of each rank's tensors. All ranks send the same number of times.

        Args:
            moves: From a rank's place on the axis to views of its tensors, and the parts for them.

        Returns:
            The function that waits until all peers have pushed their parts. It takes a name of them, for messages.
        """
        link = self._link
        self._sent += 1
        slot = self._slots[self._sent]
        for peer in link.peers:
            link.send(peer, moves(peer), slot)
        link.copy(moves(link.index))

        def wait(what: str) -> None:
            for peer in link.peers:
                link.expect(peer, slot, what)

        return wait

    def end(self) -> None:
        """Ends a call: the current stream waits for this rank's pushes, so that their sources may change."""
        self._link.joined()
