"""Steps: the attention calls of a layout's ranks, as a table of their parts.

On 1024 ranks a ring has a million steps of a thousand parts. The table holds three numbers for each step. A rank's
`Step`s are created on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["HeadRanges", "Ranges", "Step", "Steps"]

Ranges = tuple[tuple[int, int], ...]

#: (start, stop) of some query heads, and of the KV heads that they attend to.
HeadRanges = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Step:
    """One attention call of one rank, exactly as the rank makes it.

    If a rank has several steps, each is one part of the same softmax. Their results merge by their log-sum-exps.

    Attributes:
        q_ranges: (start, stop) of the queries, ascending and disjoint, in global positions.
        k_ranges: The same for the keys.
        heads_q: (start, stop) of the query heads.
        heads_kv: (start, stop) of the KV heads.
    """

    q_ranges: Ranges
    k_ranges: Ranges
    heads_q: tuple[int, int]
    heads_kv: tuple[int, int]


class Steps(Sequence[tuple[Step, ...]]):
    """The steps of every rank: a sequence of tuples, equal to any other sequence of the same steps.

    Args:
        parts: Ranges of tokens that are the queries or keys of some step: [parts].
        heads: Ranges of heads of the steps: [heads].
        table: The part of the queries, the part of the keys and the heads of each step, rank after rank: [steps, 3].
        bounds: Index in the table at which each rank's steps begin, and the end of the last rank's steps: [ranks + 1].
    """

    def __init__(
        self,
        parts: Sequence[Ranges],
        heads: Sequence[HeadRanges],
        table: NDArray[np.int64],
        bounds: NDArray[np.int64],
    ) -> None:
        self.parts, self.heads = tuple(parts), tuple(heads)
        self.table, self.bounds = table, bounds

    @classmethod
    def of(cls, steps: Sequence[Sequence[Step]]) -> Steps:
        """The table of listed steps: [ranks][steps]."""
        if isinstance(steps, Steps):
            return steps
        parts: dict[Ranges, int] = {}
        heads: dict[HeadRanges, int] = {}
        rows = [
            (
                parts.setdefault(step.q_ranges, len(parts)),
                parts.setdefault(step.k_ranges, len(parts)),
                heads.setdefault((step.heads_q, step.heads_kv), len(heads)),
            )
            for of_rank in steps
            for step in of_rank
        ]
        bounds = np.cumsum([0, *map(len, steps)])
        return cls(tuple(parts), tuple(heads), np.array(rows, np.int64).reshape(-1, 3), bounds)

    @classmethod
    def even(cls, parts: Sequence[Ranges], heads: Sequence[HeadRanges], table: Iterable[object], ranks: int) -> Steps:
        """The table of one or more ranks with the same number of steps. The arguments are as in `Steps`."""
        rows = np.asarray(table, np.int64).reshape(-1, 3)
        return cls(parts, heads, rows, np.arange(ranks + 1) * (len(rows) // ranks))

    @cached_property
    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """The parts as arrays, without empty ranges: [parts][ranges, 2]."""
        arrays = (np.array(part, np.int64).reshape(-1, 2) for part in self.parts)
        return tuple(array[array[:, 0] != array[:, 1]] for array in arrays)

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """The rank of each step: [steps]."""
        return np.repeat(np.arange(len(self)), np.diff(self.bounds))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[Step, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[Step, ...], ...]: ...

    def __getitem__(self, index: int | slice) -> tuple[Step, ...] | tuple[tuple[Step, ...], ...]:
        if isinstance(index, slice):
            return tuple(self[rank] for rank in range(len(self))[index])
        rank = range(len(self))[index]
        rows = self.table[self.bounds[rank] : self.bounds[rank + 1]].tolist()
        return tuple(Step(self.parts[q], self.parts[k], *self.heads[heads]) for q, k, heads in rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Steps | tuple | list):
            return NotImplemented
        if (
            isinstance(other, Steps)
            and (self.heads, self.parts) == (other.heads, other.parts)
            and np.array_equal(self.bounds, other.bounds)
            and np.array_equal(self.table, other.table)
        ):
            return True
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), self.heads[:1]))

    def __repr__(self) -> str:
        return f"<Steps: {len(self.table)} of {len(self)} ranks>"
