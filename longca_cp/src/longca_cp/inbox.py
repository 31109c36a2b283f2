"""Inbox: the part of a window that peers fill in turns, and the posts that order these turns.

A call uses an inbox a number of times. Use u lies in slot u modulo the number of slots, so that one use arrives while
the use before it is read. Each use has two posts:

| post | from | to | meaning |
|---|---|---|---|
| free | the reader | each source of the use | the slot has been read, and the source may write |
| ready | a source | the reader | the source has written its part |

A call posts for its first uses when it begins. The reader's earlier calls were ordered before this post. So all layers
share an inbox, and so do all plans with an axis in common.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from longca_cp.exchange import Axis
from longca_cp.transports.host_memory import everyones
from longca_cp.transports.link import Link

__all__ = ["SLOTS", "Inbox", "inbox"]

#: The most slots of an inbox.
SLOTS = 2

#: From a slot to the (into, source) pairs to push: views of the slot, and tensors of their shapes.
Moves = Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]

#: The living inboxes of each link, by their numbers. All ranks count alike.
_INBOXES: weakref.WeakKeyDictionary[Link, weakref.WeakValueDictionary[int, Inbox]] = weakref.WeakKeyDictionary()
_NUMBERS: weakref.WeakKeyDictionary[Link, int] = weakref.WeakKeyDictionary()


def inbox(axis: Axis, what: str, length: int, dtype: torch.dtype, uses: int) -> Inbox | None:
    """An inbox that other plans may have too. All ranks of the axis call it together, with equal arguments.

    Args:
        axis: The axis, which has a link.
        what: What arrives, for messages. Inboxes of one call differ in it.
        length: Elements of a slot.
        dtype: Their dtype.
        uses: The most uses of a call on any rank.

    Returns:
        The inbox. None if it has no use.

    Raises:
        WindowMemoryError: It does not fit on some rank.
    """
    link = axis.link
    assert link is not None, "an axis without a link has collectives"
    if not uses or not length:
        return None
    living, number = _INBOXES.setdefault(link, weakref.WeakValueDictionary()), _NUMBERS.get(link, 0)
    mine = [at for at, box in living.items() if box.takes(what, length, dtype, min(SLOTS, uses))]
    # Garbage is collected at different times, so ranks take an inbox that lives on all of them.
    if shared := set.intersection(*map(set, everyones(axis.group, mine))):
        return living[min(shared)]
    made = Inbox(link, what, length, dtype, min(SLOTS, uses))
    _NUMBERS[link], living[number] = number + 1, made
    return made


class Inbox:
    """Slots of a window. All ranks make it together, with equal arguments.

    Args:
        link: The peers.
        what: What arrives, for messages.
        length: Elements of a slot.
        dtype: Their dtype.
        slots: Number of slots.
    """

    def __init__(self, link: Link, what: str, length: int, dtype: torch.dtype, slots: int) -> None:
        self._link, self._what, self._length, self._dtype, self._slots = link, what, length, dtype, slots
        self._window = link.window((slots, length), dtype)
        self._free, self._ready = link.slots(slots), link.slots(slots)
        self._sources: Sequence[Sequence[int]] = ()

    def takes(self, what: str, length: int, dtype: torch.dtype, slots: int) -> bool:
        """Whether it has as many slots, each at least as long."""
        return (self._what, self._dtype, self._slots) == (what, dtype, slots) and self._length >= length

    def begin(self, sources: Sequence[Sequence[int]]) -> None:
        """Begins a call.

        Args:
            sources: The peers that write in each of this rank's uses: [uses][peers].
        """
        self._sources = sources
        for use in range(min(self._slots, len(sources))):
            self._offer(use)

    def put(self, reader: int, use: int, moves: Moves) -> None:
        """Pushes to a peer's slot once it is free, and posts that it is ready.

        Args:
            reader: The peer.
            use: The peer's use.
            moves: The tensors to push, and the places in the slot.
        """
        slot = use % self._slots
        self._link.expect(reader, self._free[slot], f"room for {self._what}")
        for into, source in moves(self._window.of(reader)[slot]):
            self._link.push(reader, into, source)
        self._link.post(reader, self._ready[slot])

    def take(self, use: int) -> Tensor:
        """Waits for all sources of a use, and returns its slot: [length]."""
        slot = use % self._slots
        for source in self._sources[use]:
            self._link.expect(source, self._ready[slot], self._what)
        return self._window.mine[slot]

    def release(self, use: int) -> None:
        """Gives the slot of a use to the next use. Everything that reads the slot was given to the current stream."""
        if use + self._slots < len(self._sources):
            self._offer(use + self._slots)

    def joined(self) -> None:
        """Waits for this rank's own pushes, before their sources change."""
        self._link.joined()

    def _offer(self, use: int) -> None:
        for source in self._sources[use]:
            self._link.post(source, self._free[use % self._slots])
