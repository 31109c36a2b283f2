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
    """The rows, which are tokens, that ranks give and get under a layout of one step a rank."""

    layout: Layout
    pushes: bool  # which move the needed rows alone, to their places

    @cached_property
    def everything(self) -> bool:
        """Whether all rows are gathered, and not only the needed ones."""
        return not self.pushes and gathers_everything(self.layout)

    @cached_property
    def held(self) -> _Ints:
        """Rows that each rank holds: [ranks]."""
        return np.array([_count(shard) for shard in self.layout.shards], np.int64)

    @cached_property
    def needed(self) -> _Ints:
        """Rows that each rank's step takes: [ranks]."""
        needed: _Ints = self._rows.sum(axis=0)
        return needed

    @cached_property
    def given(self) -> _Ints:
        """Rows that each rank gives, to itself too, if only needed rows move: [ranks]."""
        given: _Ints = self._rows.sum(axis=1)
        return given

    @cached_property
    def sent(self) -> int:
        """Most rows that leave a rank or reach it, if only needed rows move."""
        own = self._rows.diagonal()
        return int(max((self.given - own).max(), (self.needed - own).max()))

    @cached_property
    def reorders(self) -> bool:
        """Whether rows arrive in another order than that of their tokens on some rank, or with others among them."""
        if self.pushes:
            return False
        starts = [shard[0][0] for shard in self.layout.shards if shard]
        apart = any(len(shard) > 1 for shard in self.layout.shards) or starts != sorted(starts)
        if not self.everything:
            return apart
        padded = len(set(self.held.tolist())) > 1
        return apart or padded or bool((self.needed < self.layout.num_tokens).any())

    @cached_property
    def _rows(self) -> _Ints:
        """Rows of each rank that each rank's step takes: [owners, ranks]."""
        shards = [np.array(shard, np.int64).reshape(-1, 2) for shard in self.layout.shards]
        owner, bounds = np.repeat(np.arange(len(shards)), list(map(len, shards))), np.concatenate(shards)
        taken = [np.bincount(owner, _common(steps[0].k_ranges, bounds), len(shards)) for steps in self.layout.steps]
        return np.rint(np.stack(taken, axis=1)).astype(np.int64)


def _count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _common(ranges: Ranges, bounds: _Ints) -> NDArray[np.float64]:
    """Tokens of some ranges between each two bounds: [bounds]."""
    edges = np.array(ranges, np.int64).reshape(-1, 2)
    sizes = edges[:, 1] - edges[:, 0]
    ends = np.cumsum(sizes)
    below = np.interp(bounds, np.r_[-1, edges.ravel()], np.r_[0, np.stack([ends - sizes, ends], axis=1).ravel()])
    return np.diff(below)[:, 0]
