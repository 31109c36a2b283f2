"""Step cuts: the problem of every step of a layout, found without cutting the mask step by step.

A mask of slices is cut for many ranks at once (`longca.manifests.step_stacks`). The visible pairs of the steps of a
block-sparse mask come from its bitmap (`part_areas`). A rank's own steps are cut on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longca.manifests.problem import Problem
from longca.manifests.step_stacks import cut_steps, step_stacks
from longca.manifests.steps import Steps
from longca.manifests.strategy import Layout
from longca.masks import BlockSparseMask, SliceMask
from longca.masks.cutting import renumber
from longca.plan_cache import PlanCache

__all__ = ["StepProblems", "distinct_steps", "mask_heads", "part_areas", "rank_areas", "step_areas", "step_problems"]

Ints = NDArray[np.int64]

#: Sums of integers below this number are exact in float64, whose products are much faster than those of integers.
_EXACT = 2**53


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


def distinct_steps(problem: Problem, layout: Layout) -> Iterator[tuple[int, Problem]]:
    """The non-empty steps that differ from the earlier ones in mask, heads or composition, each with its rank.

    Args:
        problem: The problem of all ranks together, with the global mask.
        layout: The layout: the queries, keys and heads of each step.
    """
    if not isinstance(problem.mask, SliceMask):
        for rank, steps in enumerate(step_problems(problem, layout)):
            yield from ((rank, step) for step in steps if step is not None)
        return
    seen: set[tuple[object, ...]] = set()
    for stack in step_stacks(problem, layout):
        for key, index in stack.contents.items():
            if key not in seen:
                seen.add(key)
                yield int(stack.ranks[index]), stack.problem(problem, index)


def rank_areas(problem: Problem, layout: Layout) -> list[int]:
    """The visible pairs of each rank's steps, summed over their query heads: [ranks]."""
    steps, per_head = layout.table, np.array([len(heads) for heads in mask_heads(problem, layout)], np.int64)
    heads_q = np.array([stop - start for (start, stop), _ in steps.heads], np.int64)
    areas = step_areas(problem, layout) * (heads_q // per_head)[steps.table[:, 2]]
    return [sum(areas[first:last].tolist()) for first, last in pairwise(steps.bounds.tolist())]


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
    """The visible pairs between each part as queries and each part as keys, exactly.

    Args:
        mask: The mask.
        parts: Ranges of tokens, ascending, disjoint and not empty: [parts][ranges, 2].
        heads: The heads to sum over.

    Returns:
        int64 [parts, parts]. The first index is the part of the queries.
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
