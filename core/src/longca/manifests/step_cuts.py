"""Step cuts: the problem of every step of a layout, found without cutting the mask step by step.

A mask of slices is cut for many ranks at once, because a cut at a time would take minutes for a million steps. One
`MaskStack` holds the cuts of a `StepStack`. The visible pairs of the steps of a block-sparse mask come from its bitmap
(`part_areas`). A rank's own steps are cut on demand.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from longca.manifests.offers import Direction, Offer
from longca.manifests.problem import Problem
from longca.manifests.steps import Steps
from longca.manifests.strategy import Layout
from longca.masks import BlockSparseMask, Form, Mask, SliceMask
from longca.masks.cutting import check_ranges, renumber
from longca.masks.stack import MaskStack
from longca.plan_cache import PlanCache

__all__ = [
    "StepProblems",
    "StepStack",
    "cut_steps",
    "distinct_steps",
    "imbalance",
    "mask_heads",
    "part_areas",
    "rank_areas",
    "step_areas",
    "step_problems",
    "step_stacks",
]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Limits of one stack: slices or ranges times steps, to save memory, and queries of all its masks, against overflow.
_CELLS, _ROWS = 2**20, 2**36

#: Layouts with up to this many steps are one stack.
_FEW = 256

#: Layouts with up to this many slices times steps have their cuts cached.
_KEPT = 2**20

#: Sums of integers below this number are exact in float64, whose products are much faster than those of integers.
_EXACT = 2**53


@dataclass(frozen=True, eq=False)
class StepStack:
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
    _masks: dict[int, Mask] = field(default_factory=dict)

    @cached_property
    def areas(self) -> Ints:
        """Visible pairs of each step's mask: [steps]."""
        return self.stack.areas[self.cut]

    @cached_property
    def shows(self) -> Bools:
        """Whether each step shows anything: [steps]."""
        return self.areas > 0

    @cached_property
    def composed(self) -> Bools:
        """Whether each step is one part of a larger softmax: [steps]."""
        if self.whole_composed or not len(self.ranks):
            return np.ones(len(self.ranks), np.bool_)
        rank = self.ranks - self.ranks[0]
        return (np.bincount(rank, self.shows) > 1)[rank]

    @cached_property
    def kinds(self) -> list[tuple[tuple[int, int, bool], Ints]]:
        """The non-empty steps of each number of query heads and KV heads, and of each role in a larger softmax."""
        shown = np.flatnonzero(self.shows)
        facts = np.column_stack([self.heads, self.composed])[shown]
        each = facts[np.sort(np.unique(facts @ (1, 2**17, 2**34), return_index=True)[1])]
        return [((q, kv, bool(c)), shown[(facts == (q, kv, c)).all(axis=1)]) for q, kv, c in each.tolist()]

    def first_offers(self, offers: Sequence[Offer], steps: Ints, every: bool, direction: Direction) -> Ints:
        """The first of some offers that takes the mask of each of some ascending steps, by its index, or −1.

        Layers are counted one step after another, because counting is slow. Without `every` counting ends at the first
        step that no offer takes.
        """
        cut = self.cut[steps]
        takes = [self._takes(offer, direction) for offer in offers]
        table = np.array([one[cut] for one, _ in takes] + [np.ones(len(cut), np.bool_)])
        found = table.argmax(axis=0)
        for step in np.flatnonzero(np.any([one[cut] for _, one in takes], axis=0)).tolist() if takes else ():
            index = int(cut[step])
            open_offers = (at for at in range(int(found[step])) if takes[at][1][index])
            counted = (at for at in open_offers if self.stack.has_layers(index, offers[at].most or 0))
            found[step] = next(counted, found[step])
            if found[step] == len(offers) and not every:
                break
        return np.where(found == len(offers), -1, found)

    def _takes(self, offer: Offer, direction: Direction) -> tuple[Bools, Bools]:
        """The masks that an offer certainly takes, and the masks whose layers must be counted."""
        stack, most = self.stack, offer.most
        fits = stack.admits(offer.form)
        if not offer.unequal_lengths:
            fits = fits & (stack.seqlens_q == stack.seqlens_k)
        if offer.max_seqlen is not None:
            fits = fits & (np.maximum(stack.seqlens_q, stack.seqlens_k) <= offer.max_seqlen)
        for size, limit in offer.max_sizes:
            if size.form is not None and size.counts_in(direction):
                fits = fits & stack.at_most(size.form, limit)
        if most is None:
            return fits, np.zeros_like(fits)
        if offer.form is not Form.LAYERS:
            return fits & stack.at_most(offer.form, most), np.zeros_like(fits)
        few, unsettled = stack.layer_bounds(most)
        return fits & few, fits & unsettled

    def by_rank(self, problem: Problem) -> Iterator[tuple[Problem | None, ...]]:
        """The problems of the steps of each rank, with None for an empty step."""
        asked = (self.problem(problem, index) if shown else None for index, shown in enumerate(self.shows.tolist()))
        for steps in np.diff(self.bounds).tolist():
            yield tuple(islice(asked, steps))

    def problem(self, problem: Problem, index: int) -> Problem:
        """The problem of a step. Steps of the same cut have one mask."""
        heads_q, heads_kv = self.heads[index].tolist()
        cut, composed = int(self.cut[index]), bool(self.composed[index])
        mask = self._masks.setdefault(cut, self.stack.mask(cut))
        return replace(problem, mask=mask, heads_q=heads_q, heads_kv=heads_kv, composed=composed)


def step_stacks(problem: Problem, layout: Layout) -> Iterator[StepStack]:
    """The steps of all ranks, for a mask of slices: of the first rank, then of more and more ranks.

    An answer may need the first stack alone.
    """
    mask = problem.concrete_mask
    assert isinstance(mask, SliceMask), "masks of blocks are cut one by one"
    if len(layout.table.table) * len(mask.array) > _KEPT:
        return cut_steps(mask, layout.table, problem.composed)
    stacks = _STACKS.get(mask, layout, lambda: _Stacks(cut_steps(mask, layout.table, False)))
    return (replace(stack, whole_composed=True) for stack in stacks) if problem.composed else iter(stacks)


class _Stacks:
    """Stacks that are cut on first use, one after another. Threads may share them."""

    def __init__(self, stacks: Iterator[StepStack]) -> None:
        self._stacks, self._made, self._lock = stacks, list[StepStack](), threading.Lock()

    def __iter__(self) -> Iterator[StepStack]:
        for at in count():
            with self._lock:
                if at == len(self._made):
                    if (stack := next(self._stacks, None)) is None:
                        return
                    self._made.append(stack)
            yield self._made[at]


#: The latest stacks.
_STACKS: PlanCache[_Stacks] = PlanCache(16)


def cut_steps(mask: SliceMask, steps: Steps, composed: bool) -> Iterator[StepStack]:
    """The stacks of a mask and the steps of all ranks, which together may be one part of a larger softmax."""
    heads = np.array([(q[1] - q[0], kv[1] - kv[0]) for q, kv in steps.heads], np.int64).reshape(-1, 2)
    for column, seqlen, axis in ((0, mask.seqlen_q, "query"), (1, mask.seqlen_k, "key")):
        for part in np.unique(steps.table[:, column]).tolist():
            inner = steps.arrays[part].ravel()
            if len(inner) and (inner[0] < 0 or inner[-1] > seqlen or (np.diff(inner) < 0).any()):
                check_ranges(steps.parts[part], seqlen, axis)  # raises the error of a single cut
    longest = max((int(np.diff(part).sum()) for part in steps.arrays), default=0)
    ranges = max((len(part) for part in steps.arrays), default=0)
    most = min(_CELLS // max(1, len(mask.array), 2 * ranges), _ROWS // max(1, longest))
    # A small layout is one stack. The first stack of a large one is of one rank, which may be enough for an answer.
    first, ranks = 0, len(steps) if len(steps.table) <= _FEW else 1
    while first < len(steps):
        last = int(np.searchsorted(steps.bounds, steps.bounds[first] + most, side="right")) - 1
        last = min(max(last, first + 1), first + ranks, len(steps))
        begin, end = steps.bounds[first], steps.bounds[last]
        rows = steps.table[begin:end]
        pairs, cut = np.unique(rows[:, 0] * len(steps.parts) + rows[:, 1], return_inverse=True)
        stack = MaskStack.of_cuts(
            mask, steps.arrays, steps.arrays, np.stack(np.divmod(pairs, max(1, len(steps.parts))), axis=1)
        )
        yield StepStack(stack, cut, steps.ranks[begin:end], heads[rows[:, 2]], steps.bounds[first : last + 1], composed)
        first, ranks = last, ranks * 4


class StepProblems:
    """The problem of every step of a layout: [ranks][steps]. An empty step has None.

    A rank's steps are cut together, on first use. Steps of the same queries and keys have one mask. Iteration over all
    ranks cuts many ranks at once. These masks keep their common stack in memory.
    """

    def __init__(self, problem: Problem, layout: Layout) -> None:
        self._problem, self._layout = problem, layout
        self._ranks: dict[int, tuple[Problem | None, ...]] = {}

    def __len__(self) -> int:
        return self._layout.world_size

    def __getitem__(self, index: int) -> tuple[Problem | None, ...]:
        rank = range(len(self))[index]
        if rank not in self._ranks:
            mask = self._problem.mask
            self._ranks[rank] = self._cut(mask, rank) if isinstance(mask, SliceMask) else self._narrowed(rank)
        return self._ranks[rank]

    def __iter__(self) -> Iterator[tuple[Problem | None, ...]]:
        if isinstance(self._problem.mask, SliceMask):
            for stack in step_stacks(self._problem, self._layout):
                yield from stack.by_rank(self._problem)
        else:
            yield from (self[rank] for rank in range(len(self)))

    def _cut(self, mask: SliceMask, rank: int) -> tuple[Problem | None, ...]:
        steps = self._layout.table
        mine = steps.table[steps.bounds[rank] : steps.bounds[rank + 1]]
        only = Steps(steps.parts, steps.heads, mine, np.array([0, len(mine)]))
        return next(next(cut_steps(mask, only, self._problem.composed)).by_rank(self._problem))

    def _narrowed(self, rank: int) -> tuple[Problem | None, ...]:
        parts = [
            self._problem.narrowed(range(*step.heads_q), range(*step.heads_kv), (step.q_ranges, step.k_ranges))
            for step in self._layout.steps[rank]
        ]
        shown = [not part.concrete_mask.is_empty for part in parts]
        composed = self._problem.composed or sum(shown) > 1
        return tuple(
            replace(part, composed=composed) if shows else None for part, shows in zip(parts, shown, strict=True)
        )


def step_problems(problem: Problem, layout: Layout) -> StepProblems:
    """The problem of every step of a layout: the mask's cut, its heads, and whether it is part of a larger softmax.

    A step is such a part (`composed`) if its rank has more than one non-empty step. Kernels are planned with these
    problems. A kernel that takes the first offer that covers a step therefore takes the offer of its verdict.

    Args:
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.

    Returns:
        [ranks][steps], as in `layout.steps`, with None for an empty step. The latest cuts are cached.
    """
    return _PROBLEMS.get(problem.mask, (problem.settings, layout), lambda: StepProblems(problem, layout))


#: The problems of the latest layouts.
_PROBLEMS: PlanCache[StepProblems] = PlanCache(8)


def distinct_steps(problem: Problem, layout: Layout) -> Iterator[Problem]:
    """The non-empty steps that differ from the earlier ones in mask, heads or composition."""
    if not isinstance(problem.mask, SliceMask):
        yield from (step for steps in step_problems(problem, layout) for step in steps if step is not None)
        return
    seen: set[tuple[object, ...]] = set()
    for stack in step_stacks(problem, layout):
        cuts, shown = stack.stack, np.flatnonzero(stack.shows)
        slices = [cuts.slices(cut).tobytes() for cut in range(len(cuts))]
        sizes = cuts.seqlens_q[stack.cut], cuts.seqlens_k[stack.cut]
        rows = np.column_stack([*sizes, stack.heads, stack.composed])[shown].tolist()
        for index, row in zip(shown.tolist(), rows, strict=True):
            key = *row, slices[stack.cut[index]]
            if key not in seen:
                seen.add(key)
                yield stack.problem(problem, index)


def rank_areas(problem: Problem, layout: Layout) -> list[int]:
    """The visible pairs of each rank's steps, summed over their query heads: [ranks]."""
    steps, per_head = layout.table, np.array([len(heads) for heads in mask_heads(problem, layout)], np.int64)
    heads_q = np.array([stop - start for (start, stop), _ in steps.heads], np.int64)
    areas = step_areas(problem, layout) * (heads_q // per_head)[steps.table[:, 2]]
    return [sum(areas[first:last].tolist()) for first, last in pairwise(steps.bounds.tolist())]


def imbalance(problem: Problem, layout: Layout) -> float:
    """How much more the busiest rank has to compute than the ranks on average: 1 where all have the same area."""
    areas = rank_areas(problem, layout)
    return max(areas) * len(areas) / sum(areas) if any(areas) else 1.0


def step_areas(problem: Problem, layout: Layout) -> Ints:
    """The visible pairs of each step's mask, over the mask's own heads, in the order of `layout.table`: [steps]."""
    if isinstance(problem.mask, BlockSparseMask):
        return _AREAS.get(problem.mask, (problem.heads_q, layout), lambda: _block_areas(problem, layout))
    if not isinstance(problem.mask, SliceMask):
        parts = step_problems(problem, layout)
        return np.array([step.concrete_mask.area if step else 0 for steps in parts for step in steps], np.int64)
    return np.concatenate([np.zeros(0, np.int64), *(stack.areas for stack in step_stacks(problem, layout))])


#: The areas of the latest layouts of block-sparse masks.
_AREAS: PlanCache[Ints] = PlanCache(8)


def _block_areas(problem: Problem, layout: Layout) -> Ints:
    """`step_areas` of a block-sparse mask, from its bitmap: the mask is not cut."""
    mask, steps = problem.concrete_mask, layout.table
    assert isinstance(mask, BlockSparseMask), "only these masks have blocks"
    areas = np.zeros(len(steps.table), np.int64)
    for index, heads in enumerate(mask_heads(problem, layout)):
        mine = steps.table[:, 2] == index
        queries, keys, _ = steps.table[mine].T
        areas[mine] = part_areas(mask, steps.arrays, heads)[queries, keys]
    return areas


def part_areas(mask: BlockSparseMask, parts: Sequence[Ints], heads: range) -> Ints:
    """The visible pairs between each part as queries and each part as keys, exactly, summed over heads: [parts, parts].

    Args:
        mask: The mask.
        parts: Ranges of tokens, ascending, disjoint and not empty: [parts][ranges, 2].
        heads: The mask's heads to sum over.
    """
    fits = len(heads) * mask.seqlen_q * mask.seqlen_k < _EXACT
    kind = np.float64 if fits else np.int64
    queries, keys = (_tokens_in_blocks(bounds, parts).astype(kind) for bounds in (mask.q_bounds, mask.k_bounds))
    kept = sum((mask.kept(head).astype(np.int32) for head in heads), np.int32(0))
    areas = queries @ (np.asarray(kept).astype(kind) @ keys.T)
    found: Ints = (np.rint(areas) if fits else areas).astype(np.int64)
    return found


def _tokens_in_blocks(bounds: Ints, parts: Sequence[Ints]) -> Ints:
    """The tokens of each part in each block: [parts, blocks]."""
    counts = np.zeros((len(parts), len(bounds) - 1), np.int64)
    for row, ranges in zip(counts, parts, strict=True):
        if len(ranges):
            row[:] = np.diff(renumber(bounds, ranges))
    return counts


def mask_heads(problem: Problem, layout: Layout) -> list[range]:
    """The mask's own heads in each range of heads of a layout."""
    heads = problem.concrete_mask.heads
    of_query = heads == problem.heads_q
    return [range(1) if heads == 1 else range(*(query if of_query else kv)) for query, kv in layout.table.heads]
