"""Step stacks: the steps of consecutive ranks with their cuts of a mask of slices, made together.

One `MaskStack` holds the cuts of many steps, because a cut at a time would take minutes for a million steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from longca.manifests.offers import Offer
from longca.manifests.problem import Problem
from longca.manifests.steps import Steps
from longca.manifests.strategy import Layout
from longca.masks import Form, Mask, SliceMask
from longca.masks.cutting import check_ranges
from longca.masks.stack import MaskStack
from longca.plan_cache import PlanCache

__all__ = ["StepStack", "cut_steps", "step_stacks"]

Ints = NDArray[np.int64]

#: Limits of one stack: slices or ranges times steps, to save memory, and queries of all its masks, against overflow.
_CELLS, _ROWS = 2**20, 2**36

#: Layouts with up to this many slices times steps have their cuts cached.
_KEPT = 2**20

#: A fact that bounds do not settle.
_UNSETTLED = -1


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
        """Every property of a step that an offer checks, as columns of numbers."""
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
        """The problem of a step."""
        heads_q, heads_kv = self.heads[index].tolist()
        mask: Mask = self.stack.mask(int(self.cut[index]))
        return replace(problem, mask=mask, heads_q=heads_q, heads_kv=heads_kv, composed=bool(self.composed[index]))


def step_stacks(problem: Problem, layout: Layout) -> Iterator[StepStack]:
    """The steps of all ranks: of the first rank, then of more and more ranks. An answer may need the first stack alone.

    Args:
        problem: The problem of all ranks together, with a mask of slices.
        layout: The layout: the queries, keys and heads of each step.
    """
    mask, composed = problem.concrete_mask, problem.composed
    assert isinstance(mask, SliceMask), "masks of blocks are cut one by one"
    if len(layout.table.table) * len(mask.array) > _KEPT:
        return cut_steps(mask, layout.table, composed)
    kept = _STACKS.get(mask, layout, lambda: _Kept(cut_steps(mask, layout.table, False)))
    return (replace(stack, whole_composed=True) for stack in kept) if composed else iter(kept)


class _Kept:
    """Stacks that are made once, on first use. Threads may share them."""

    def __init__(self, stacks: Iterator[StepStack]) -> None:
        self._stacks, self._made, self._lock = stacks, list[StepStack](), threading.Lock()

    def __iter__(self) -> Iterator[StepStack]:
        at = 0
        while True:
            with self._lock:
                if at == len(self._made):
                    stack = next(self._stacks, None)
                    if stack is None:
                        return
                    self._made.append(stack)
            yield self._made[at]
            at += 1


#: The latest stacks.
_STACKS: PlanCache[_Kept] = PlanCache(8)


def cut_steps(mask: SliceMask, steps: Steps, composed: bool) -> Iterator[StepStack]:
    """The stacks of a mask and some steps.

    Args:
        mask: The mask of all tokens.
        steps: The steps of all ranks.
        composed: Whether all steps together are one part of a larger softmax.
    """
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
        yield StepStack(stack, cut, steps.ranks[begin:end], heads[rows[:, 2]], steps.bounds[first : last + 1], composed)
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
