"""The rows that ring_all_gather's ranks gather: the numbers given and received, and the way. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout
from longca.manifests.strategy import Ranges

__all__ = ["MOST", "Gathered", "gathers_everything"]

#: The share of all rows from which on everything is gathered. A byte takes longer in an all-to-all than in an
#: all-gather. The difference is larger between nodes: an all-gather passes each row on, and an all-to-all sends it to
#: every rank.
MOST = 0.75

_Ints = NDArray[np.int64]


def gathers_everything(layout: Layout) -> bool:
    """Whether ranks together need so many rows that everything is gathered. The answer is the same on all ranks."""
    needed = sum(_count(steps[0].k_ranges) for steps in layout.steps)
    return needed >= MOST * layout.world_size * layout.num_tokens


@dataclass(frozen=True, eq=False)
class Gathered:
    """The rows, which are tokens, that ranks give and get.

    Attributes:
        layout: A layout of one step a rank.
    """

    layout: Layout

    @cached_property
    def everything(self) -> bool:
        """Whether all rows are gathered, and not only the needed ones."""
        return gathers_everything(self.layout)

    @cached_property
    def held(self) -> _Ints:
        """Rows that each rank holds: [ranks]."""
        return np.array([_count(shard) for shard in self.layout.shards], np.int64)

    @cached_property
    def needed(self) -> _Ints:
        """Rows that each rank's step takes: [ranks]."""
        return np.array([_count(ranges) for ranges in self._keys], np.int64)

    @cached_property
    def given(self) -> _Ints:
        """Rows that each rank gives, to itself too, if only needed rows move: [ranks]."""
        bounds = np.concatenate([np.array(ranges, np.int64).reshape(-1, 2) for ranges in self._keys])
        places = np.r_[0, np.unique(bounds), self.layout.num_tokens]
        wanting = np.zeros(len(places), np.int64)
        np.add.at(wanting, np.searchsorted(places[1:], bounds[:, 0]) + 1, 1)
        np.add.at(wanting, np.searchsorted(places[1:], bounds[:, 1]) + 1, -1)
        # Rows given below a token, over all ranks that want them.
        before = np.r_[0, np.cumsum(np.cumsum(wanting)[:-1] * np.diff(places))]
        shards = [np.array(shard, np.int64).reshape(-1, 2) for shard in self.layout.shards]
        owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
        rows = np.diff(np.interp(np.concatenate(shards), places, before))[:, 0]
        return np.rint(np.bincount(owner, rows, minlength=len(shards))).astype(np.int64)

    @cached_property
    def own(self) -> _Ints:
        """Rows that each rank needs and holds itself: [ranks]."""
        pairs = zip(self._keys, self.layout.shards, strict=True)
        return np.array([_common(keys, shard) for keys, shard in pairs], np.int64)

    @cached_property
    def sent(self) -> int:
        """Most rows that leave a rank or reach it, if only needed rows move."""
        return int(max((self.given - self.own).max(), (self.needed - self.own).max()))

    @cached_property
    def reorders(self) -> bool:
        """Whether rows arrive in another order than that of their tokens on some rank, or with others among them."""
        starts = [shard[0][0] for shard in self.layout.shards if shard]
        apart = any(len(shard) > 1 for shard in self.layout.shards) or starts != sorted(starts)
        if not self.everything:
            return apart
        padded = len(set(self.held.tolist())) > 1
        return apart or padded or bool((self.needed < self.layout.num_tokens).any())

    @cached_property
    def _keys(self) -> list[Ranges]:
        return [steps[0].k_ranges for steps in self.layout.steps]


def _count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _common(first: Ranges, second: Ranges) -> int:
    """Tokens that are in both."""
    a, b = (np.array(ranges, np.int64).reshape(-1, 2) for ranges in (first, second))
    if not len(a) or not len(b):
        return 0
    ends = np.r_[0, np.cumsum(np.diff(b))]
    # Tokens of the second below each bound of the first.
    index = np.searchsorted(b[:, 0], a.ravel(), side="right")
    into = np.minimum(a.ravel(), np.r_[0, b[:, 1]][index]) - np.r_[0, b[:, 0]][index]
    below = np.where(index > 0, ends[index - 1] + into, 0).reshape(-1, 2)
    return int(np.diff(below).sum())
