"""Counters: the posts that ranks of a link make to each other, counted for each slot in memory that all ranks share.

A rank counts its posts to each peer, and the posts that it has awaited from each. A post writes its count to the peer's
memory. A wait ends when the count there is at least the awaited one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist

from longca.errors import LongCAError
from longca_cp.transports.host_memory import everyones, everyones_memory

__all__ = ["MOST_SLOTS", "Counters", "Slots"]

#: Slots of one link that its plans may hold at a time.
MOST_SLOTS = 4096


class Slots(Sequence[int]):
    """Some slots of a link, for as long as this object lives. Their numbers are the same on all ranks.

    Args:
        first: The first number.
        count: How many slots.

    Attributes:
        level: The count of posts from which the present call counts.
    """

    def __init__(self, first: int, count: int) -> None:
        self._numbers = range(first, first + count)
        self.level = 0

    @property
    def part(self) -> slice:
        """Their place among all slots."""
        return slice(self._numbers.start, self._numbers.stop)

    def __getitem__(self, at: int) -> int:  # type: ignore[override]
        return self._numbers[at]

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)


class Counters:
    """The counters of a link. All ranks make them together.

    Args:
        group: The process group of the link.

    Attributes:
        arrived: Posts that have arrived, by receiver: [sender, slot]. Two more columns are those of `Link.numbers`.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group, self._index, columns = group, group.rank(), MOST_SLOTS + 2
        memory = everyones_memory(group, 8 * group.size() * columns)
        self.arrived = [each.view(torch.int64).view(group.size(), columns).numpy() for each in memory]
        #: Posts to each peer, and posts that were awaited from it, by this process: [peer, slot].
        self._posted, self._awaited = (np.zeros((group.size(), MOST_SLOTS), np.int64) for _ in "pa")
        self._given: weakref.WeakSet[Slots] = weakref.WeakSet()

    def slots(self, count: int) -> Slots:
        """See `Link.slots`."""
        taken = np.zeros(MOST_SLOTS, bool)
        for given in self._given:
            taken[given.part] = True
        taken = np.logical_or.reduce([np.unpackbits(said) for said in everyones(self._group, np.packbits(taken))])
        used = np.cumsum(taken, dtype=np.int64)
        free = used[count - 1 :] - np.concatenate([[0], used[: len(used) - count]]) == 0
        if not free.any():
            raise LongCAError(f"a plan asks for {count} slots, and {int((~taken).sum())} of {MOST_SLOTS} are free")
        slots = Slots(int(free.argmax()), count)
        # Posts to earlier owners may still be on their way, so counting goes on from the most that any rank has posted.
        slots.level = max(everyones(self._group, int(self._posted[:, slots.part].max(initial=0))))
        self.restart(slots, 0)
        self._given.add(slots)
        return slots

    def restart(self, slots: Slots, most: int) -> None:
        """See `Link.restart`."""
        slots.level += most
        self._posted[:, slots.part] = self._awaited[:, slots.part] = slots.level

    def post(self, index: int, slot: int) -> int:
        """Counts a post to a peer."""
        self._posted[index, slot] += 1
        return int(self._posted[index, slot])

    def expect(self, index: int, slot: int) -> int:
        """Counts an awaited post of a peer."""
        self._awaited[index, slot] += 1
        return int(self._awaited[index, slot])

    def missing(self, index: int, slot: int, count: int) -> bool:
        """Whether a peer has not posted as often as awaited."""
        return int(self.arrived[self._index][index, slot]) < count
