"""Inbox: the part of a window that peers fill in turns, and the posts that order these turns.

A call uses an inbox a number of times. Use u lies in slot u modulo the number of slots, so that one use arrives while
the use before it is read. Each use has two posts. The reader tells each source that the slot is free, and the source
tells the reader that its part is ready. A rank's own rows need no posts. It copies them in the order of the current
stream.

A call posts for its first uses when it begins. The reader's earlier calls were ordered before this post. So all layers
share an inbox, and so do all plans with an axis in common.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from longca_cp.overlap import SLOTS
from longca_cp.transports.link import Link, Moves

__all__ = ["Inbox", "Request"]

#: The most posts of a slot to one peer in a call.
_MOST_POSTS = 32

#: The latest inbox of each link for what arrives, its dtype and a number of slots.
_Inboxes = weakref.WeakValueDictionary[tuple[str, torch.dtype, int], "Inbox"]
_INBOXES: weakref.WeakKeyDictionary[Link, _Inboxes] = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class Request:
    """A plan's request for an inbox. All ranks of a link make requests with equal attributes, in the same order."""

    link: Link | None  # None for a ring of one rank
    what: str  # arrives, for messages. The inboxes of one call differ in it
    length: int  # elements of a slot
    dtype: torch.dtype
    uses: int  # of a call, the most on any rank

    @cached_property
    def inbox(self) -> Inbox | None:
        """The inbox, which other plans may have too. None without uses. All ranks ask for it together."""
        if self.link is None or not self.uses or not self.length:
            return None
        latest, slots = _INBOXES.setdefault(self.link, _Inboxes()), min(SLOTS, self.uses)
        box = latest.get((self.what, self.dtype, slots))
        fits = box is not None and box.length >= self.length
        # Garbage is collected at different times, so ranks take an inbox that lives on all of them.
        if not all(self.link.numbers(int(fits))):
            box = latest[self.what, self.dtype, slots] = Inbox(self.link, self, slots)
        return box


class Inbox:
    """Slots of a window, made for a first request. All ranks make it together."""

    def __init__(self, link: Link, request: Request, slots: int) -> None:
        self._link, self._what, self._slots = link, request.what, slots
        self._window = self._link.window((slots, request.length), request.dtype)
        self._free, self._ready = self._link.slots(slots), self._link.slots(slots)
        self._sources: Sequence[Sequence[int]] = ()
        self._free_uses = 0  # of this rank's own inbox

    @property
    def length(self) -> int:
        """Elements of a slot."""
        return self._window.mine.shape[1]

    def begin(self, sources: Sequence[Sequence[int]]) -> None:
        """Begins a call, given the ranks that write in each of this rank's uses: [uses][ranks]."""
        self._sources = [[source for source in each if source != self._link.index] for each in sources]
        for posts in (self._free, self._ready):
            self._link.restart(posts, _MOST_POSTS)
        for use in range(min(self._slots, len(sources))):
            self._offer(use, early=True)
        self._free_uses = self._slots

    def put(self, reader: int, use: int, moves: Callable[[Tensor], Moves], *, early: bool = False) -> None:
        """Sends to a peer's slot for a use once it is free, or copies to this rank's own.

        `moves` makes views of the slot, and the tensors for them, which were complete when the call began if they are
        `early`.
        """
        slot = use % self._slots
        there = moves(self._window.of(reader)[slot])
        if reader == self._link.index:
            assert use < self._free_uses, "the use before it in this slot was released"
            self._link.copy(there)
            return
        self._link.expect(reader, self._free[slot], f"room for {self._what}", pushes=True)
        self._link.send(reader, there, self._ready[slot], early=early)

    def take(self, use: int) -> Tensor:
        """Waits for all sources of a use, and returns its slot: [length]."""
        slot = use % self._slots
        for source in self._sources[use]:
            self._link.expect(source, self._ready[slot], self._what)
        return self._window.mine[slot]

    def release(self, use: int) -> None:
        """Gives the slot of a use to the next use. Everything that reads the slot was given to the current stream."""
        self._free_uses = use + self._slots + 1
        if use + self._slots < len(self._sources):
            self._offer(use + self._slots)

    def joined(self) -> None:
        """Waits for this rank's own pushes, before their sources change."""
        self._link.joined()

    def _offer(self, use: int, *, early: bool = False) -> None:
        for source in self._sources[use]:
            self._link.post(source, self._free[use % self._slots], early=early)
