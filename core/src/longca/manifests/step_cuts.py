"""Step cuts: the problem of every step of a layout, found without cutting the mask step by step.

A mask of slices is cut for many ranks at once, as a `MaskStack`. Steps belong to one *kind* if they are alike in every
property that offers check. One step of each kind answers for all. A rank's own steps are cut on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from longca.manifests.offers import Offer
from longca.manifests.problem import Problem
from longca.manifests.steps import Step, Steps
from longca.manifests.strategy import Layout
from longca.masks import Form, Mask, SliceMask
from longca.masks.cutting import check_ranges
from longca.masks.stack import MaskStack

__all__ = [
    "Kind",
    "StepProblems",
    "distinct_steps",
    "rank_areas",
    "rank_problems",
    "stacked_problems",
    "step_areas",
    "step_kinds",
    "step_problems",
]

Ints = NDArray[np.int64]

#: Limits of one stack: slices or ranges times steps, to save memory, and queries of all its masks, against overflow.
_CELLS, _ROWS = 2**20, 2**36

#: Layouts with up to this many slices times steps have their cuts cached.
_KEPT = 2**20

#: A fact that bounds do not settle.
_UNSETTLED = -1


class Kind(NamedTuple):
    """The first step of a kind: steps that are alike in every property that offers check.

    Attributes:
        rank: The step's rank.
        problem: The step's problem.
    """

    rank: int
    problem: Problem


class StepProblems(Sequence[tuple[Problem | None, ...]]):
    """The problem of every step of a layout: [ranks][steps]. An empty step has None.

    A rank's steps are cut on first use. Steps of the same queries and keys have one mask.
    """

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self._problem, self._steps = problem, layout.steps
        self._ranks: dict[int, tuple[Problem | None, ...]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, index: int) -> tuple[Problem | None, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[tuple[Problem | None, ...], ...]: ...

    def __getitem__(self, index: int | slice) -> tuple[Problem | None, ...] | tuple[tuple[Problem | None, ...], ...]:
        if isinstance(index, slice):
            return tuple(self[rank] for rank in range(len(self))[index])
        rank = range(len(self))[index]
        if rank not in self._ranks:
            self._ranks[rank] = tuple(_of_rank(self._problem, self._steps[rank]))
        return self._ranks[rank]


def step_problems(problem: Problem, layout: Layout) -> StepProblems:
    """The problem of every step of a layout: the mask's cut, its heads, and whether it is part of a larger softmax.

    A step is such a part (`composed`) if its rank has more than one non-empty step. Kernels are planned with these
    problems. A kernel that takes the first offer that covers a step therefore takes the offer of its verdict.

    Args:
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.

    Returns:
        [ranks][steps], as in `layout.steps`, with None for an empty step. The mask is cut for a rank on first use. The
        latest cuts are cached, so that planning and weighing a layout cut each mask once.
    """
    return _step_problems(problem, layout, problem.concrete_mask.key)


@lru_cache(maxsize=8)
def _step_problems(problem: Problem, layout: Layout, _key: int) -> StepProblems:
    """The key tells apart masks that show the same, and so are equal, but are made of other blocks or of slices."""
    return StepProblems(problem, layout)


def _of_rank(problem: Problem, steps: Sequence[Step]) -> Iterator[Problem | None]:
    parts = [_narrowed(problem, step) for step in steps]
    empty = [part.concrete_mask.is_empty for part in parts]
    composed = problem.composed or empty.count(False) > 1
    for part, shows_nothing in zip(parts, empty, strict=True):
        yield None if shows_nothing else replace(part, composed=composed)


def _narrowed(problem: Problem, step: Step) -> Problem:
    return problem.narrowed(range(*step.heads_q), range(*step.heads_kv), (step.q_ranges, step.k_ranges))


def step_kinds(offers: Sequence[Offer], problem: Problem, layout: Layout) -> Iterator[Kind]:
    """The first step of each kind, in the order of ranks and steps, without empty steps.

    Args:
        offers: The offers to check against the steps.
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.
    """
    if not isinstance(problem.mask, SliceMask):
        for rank, steps in enumerate(step_problems(problem, layout)):
            yield from (Kind(rank, step) for step in steps if step is not None)
        return
    seen: set[tuple[int, ...]] = set()
    for block in _blocks(problem, layout):
        for index, facts in block.first_of_each(offers):
            if facts not in seen:
                seen.add(facts)
                yield Kind(int(block.ranks[index]), block.problem(problem, index))


def distinct_steps(problem: Problem, layout: Layout) -> Iterator[Problem]:
    """The problems of the non-empty steps, each that differs from the earlier ones in its mask, heads or composition.

    Args:
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.
    """
    if not isinstance(problem.mask, SliceMask):
        yield from (step for steps in step_problems(problem, layout) for step in steps if step is not None)
        return
    seen: set[tuple[object, ...]] = set()
    for block in _blocks(problem, layout):
        for index in np.flatnonzero(block.shows).tolist():
            if (key := block.content(index)) not in seen:
                seen.add(key)
                yield block.problem(problem, index)


def stacked_problems(problem: Problem, layout: Layout) -> Iterator[tuple[Problem | None, ...]]:
    """The problems of each rank's steps, as in `step_problems`, rank after rank, for callers that look at all ranks.

    The masks get their admitted forms and touched tiles from their common stack, and keep the stack in memory.

    Args:
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.
    """
    if not isinstance(problem.mask, SliceMask):
        yield from step_problems(problem, layout)
        return
    for block in _blocks(problem, layout):
        yield from block.by_rank(problem)


def rank_problems(problem: Problem, layout: Layout, rank: int) -> tuple[Problem | None, ...]:
    """The problems of one rank's steps, as in `step_problems`, cut together. This suits a rank of many steps.

    Args:
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.
        rank: The rank.
    """
    if not isinstance(problem.mask, SliceMask):
        return step_problems(problem, layout)[rank]
    steps = layout.table
    mine = steps.table[steps.bounds[rank] : steps.bounds[rank + 1]]
    alone = Steps(steps.parts, steps.heads, mine, np.array([0, len(mine)]))
    return next(next(_cut_blocks(problem.mask, alone, problem.composed)).by_rank(problem))


def rank_areas(problem: Problem, layout: Layout) -> list[int]:
    """The visible pairs of each rank's steps, summed over their query heads: [ranks]."""
    if not isinstance(problem.mask, SliceMask):
        return [sum(part.area for part in parts if part) for parts in step_problems(problem, layout)]
    totals = [0] * layout.world_size
    for block in _blocks(problem, layout):
        for rank, area in zip(block.ranks.tolist(), (block.areas * block.heads[:, 0]).tolist(), strict=True):
            totals[rank] += area
    return totals


def step_areas(problem: Problem, layout: Layout) -> Ints:
    """The visible pairs of each step's mask, over the mask's own heads, in the order of `layout.table`: [steps]."""
    if not isinstance(problem.mask, SliceMask):
        parts = step_problems(problem, layout)
        return np.array([step.concrete_mask.area if step else 0 for steps in parts for step in steps], np.int64)
    return np.concatenate([np.zeros(0, np.int64), *(block.areas for block in _blocks(problem, layout))])


@dataclass(frozen=True, eq=False)
class _Block:
    """The steps of some consecutive ranks, and their cuts.

    Attributes:
        stack: The distinct cuts, by their queries and keys.
        cut: The cut of each step in the stack: [steps].
        ranks: The rank of each step: [steps].
        heads: Query heads and KV heads of each step: [steps, 2].
        bounds: Index at which each rank's steps begin, and the end of the last rank's steps: [ranks + 1].
        whole_composed: Whether all ranks together compute one part of a larger softmax.
    """

    stack: MaskStack
    cut: Ints
    ranks: Ints
    heads: Ints
    bounds: Ints
    whole_composed: bool

    @cached_property
    def areas(self) -> Ints:
        """Visible pairs of each step's mask: [steps]."""
        return self.stack.areas[self.cut]

    @cached_property
    def shows(self) -> NDArray[np.bool_]:
        """Whether each step shows anything: [steps]."""
        return self.areas > 0

    @cached_property
    def composed(self) -> NDArray[np.bool_]:
        """Whether each step is one part of a larger softmax: [steps]."""
        if self.whole_composed or not len(self.ranks):
            return np.ones(len(self.ranks), np.bool_)
        rank = self.ranks - self.ranks[0]
        return (np.bincount(rank, self.shows) > 1)[rank]

    def first_of_each(self, offers: Sequence[Offer]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The first non-empty step of each kind, with the properties that identify the kind, in the steps' order.

        Layers are counted one step after another, because counting is slow and the first refusal ends it. Further steps
        of a kind may therefore follow.
        """
        shown = np.flatnonzero(self.shows)
        if not len(shown):
            return
        limits = sorted({offer.most for offer in offers if offer.form is Form.LAYERS and offer.most is not None})
        facts = np.stack([*self._facts(offers), *self._layer_facts(limits)], axis=1)[shown]
        unsettled = (facts == _UNSETTLED).any(axis=1)
        code = np.zeros(len(shown), np.int64)
        for column in facts.T:
            code = np.unique(code * (int(column.max()) + 2) + column + 1, return_inverse=True)[1]
        looked_at = unsettled.copy()
        looked_at[np.unique(code, return_index=True)[1]] = True
        for index, row in zip(shown[looked_at].tolist(), facts[looked_at].tolist(), strict=True):
            for at, most in enumerate(limits, start=len(row) - len(limits)):
                if row[at] == _UNSETTLED:
                    row[at] = int(self.stack.has_layers(int(self.cut[index]), most))
            yield index, tuple(row)

    def _layer_facts(self, limits: Sequence[int]) -> Iterator[Ints]:
        """Whether each step takes no more layers than each limit, as far as bounds say."""
        for most in limits:
            few, unsettled = self.stack.layer_bounds(most)
            yield np.where(unsettled, _UNSETTLED, few)[self.cut]

    def _facts(self, offers: Sequence[Offer]) -> Iterator[Ints]:
        """All that an offer asks of a step, as columns of numbers."""
        yield from (self.composed.astype(np.int64), *self.heads.T)
        stack, forms = self.stack, {(offer.form, offer.most) for offer in offers}
        for form in {form for form, _ in forms}:
            yield stack.admits(form)[self.cut].astype(np.int64)
        for form, most in forms:
            if most is not None and form is not Form.LAYERS:
                yield stack.at_most(form, most)[self.cut].astype(np.int64)
        yield (stack.seqlens_q == stack.seqlens_k)[self.cut].astype(np.int64)
        longest = np.maximum(stack.seqlens_q, stack.seqlens_k)
        for limit in {offer.max_seqlen for offer in offers if offer.max_seqlen is not None}:
            yield (longest > limit)[self.cut].astype(np.int64)

    def by_rank(self, problem: Problem) -> Iterator[tuple[Problem | None, ...]]:
        """The problems of the steps of each rank, with None for an empty step."""
        asked = (self.problem(problem, index) if shown else None for index, shown in enumerate(self.shows.tolist()))
        for count in np.diff(self.bounds).tolist():
            yield tuple(islice(asked, count))

    def content(self, index: int) -> tuple[object, ...]:
        """The properties that distinguish a step from steps with another problem."""
        cut = int(self.cut[index])
        sizes = int(self.stack.seqlens_q[cut]), int(self.stack.seqlens_k[cut])
        return (*sizes, *self.heads[index].tolist(), bool(self.composed[index]), self.stack.slices(cut).tobytes())

    def problem(self, problem: Problem, index: int) -> Problem:
        """What a step asks."""
        heads_q, heads_kv = self.heads[index].tolist()
        mask: Mask = self.stack.mask(int(self.cut[index]))
        return replace(problem, mask=mask, heads_q=heads_q, heads_kv=heads_kv, composed=bool(self.composed[index]))


def _blocks(problem: Problem, layout: Layout) -> Iterator[_Block]:
    """The steps of all ranks: those of the first rank, then of more and more. An answer may need the first alone."""
    mask = problem.concrete_mask
    assert isinstance(mask, SliceMask), "masks of blocks are cut one by one"
    if len(layout.table.table) * len(mask.array) > _KEPT:
        return _cut_blocks(mask, layout.table, problem.composed)
    return iter(_kept_blocks(problem.composed, layout, mask, mask.key))


class _Kept:
    """Blocks that are made once, when they are first come to."""

    def __init__(self, blocks: Iterator[_Block]) -> None:
        self._blocks, self._made = blocks, list[_Block]()

    def __iter__(self) -> Iterator[_Block]:
        at = 0
        while True:
            if at == len(self._made):
                block = next(self._blocks, None)
                if block is None:
                    return
                self._made.append(block)
            yield self._made[at]
            at += 1


@lru_cache(maxsize=8)
def _kept_blocks(composed: bool, layout: Layout, mask: SliceMask, _key: int) -> _Kept:
    """The key tells apart equal masks of other slices, and spares comparing them."""
    return _Kept(_cut_blocks(mask, layout.table, composed))


def _cut_blocks(mask: SliceMask, steps: Steps, composed: bool) -> Iterator[_Block]:
    heads = np.array([(q[1] - q[0], kv[1] - kv[0]) for q, kv in steps.heads], np.int64).reshape(-1, 2)
    _check_parts(mask, steps)
    longest = max((int(np.diff(part).sum()) for part in steps.arrays), default=0)
    ranges = max((len(part) for part in steps.arrays), default=0)
    most = min(_CELLS // max(1, len(mask.array), 2 * ranges), _ROWS // max(1, longest))
    first, ranks = 0, 1
    while first < len(steps):
        last = int(np.searchsorted(steps.bounds, steps.bounds[first] + most, side="right")) - 1
        last = min(max(last, first + 1), first + ranks, len(steps))
        begin, end = steps.bounds[first], steps.bounds[last]
        rows = steps.table[begin:end]
        pairs, cut = np.unique(rows[:, 0] * len(steps.parts) + rows[:, 1], return_inverse=True)
        stack = MaskStack.of_cuts(
            mask, steps.arrays, steps.arrays, np.stack(np.divmod(pairs, max(1, len(steps.parts))), axis=1)
        )
        yield _Block(stack, cut, steps.ranks[begin:end], heads[rows[:, 2]], steps.bounds[first : last + 1], composed)
        first, ranks = last, ranks * 4


def _check_parts(mask: SliceMask, steps: Steps) -> None:
    """Refuses ranges that a cut would refuse.

    Raises:
        MaskError: Ranges outside the mask, descending or overlapping.
    """
    for column, seqlen, axis in ((0, mask.seqlen_q, "query"), (1, mask.seqlen_k, "key")):
        for part in np.unique(steps.table[:, column]).tolist():
            bounds = steps.arrays[part].ravel()
            if len(bounds) and (bounds[0] < 0 or bounds[-1] > seqlen or (np.diff(bounds) < 0).any()):
                check_ranges(steps.parts[part], seqlen, axis)
