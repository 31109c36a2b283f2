"""Step stacks: the steps of consecutive ranks with their cuts of a mask of slices, made together.

One `MaskStack` holds the cuts of many steps, because a cut at a time would take minutes for a million steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
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

#: Layouts with up to this many steps are one stack.
_FEW = 256

#: Layouts with up to this many slices times steps have their cuts cached.
_KEPT = 2**20


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
    _problems: dict[tuple[object, ...], dict[int, Problem]] = field(default_factory=dict)
    _taken: dict[tuple[object, ...], tuple[NDArray[np.bool_], NDArray[np.bool_]]] = field(default_factory=dict)

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

    @cached_property
    def kinds(self) -> list[tuple[tuple[int, int, bool], Ints]]:
        """The non-empty steps of each number of query heads and KV heads, and of each role in a larger softmax."""
        shown = np.flatnonzero(self.shows)
        facts = np.column_stack([self.heads, self.composed])[shown]
        each = facts[np.sort(np.unique(facts @ (1, 2**17, 2**34), return_index=True)[1])]
        return [((q, kv, bool(c)), shown[(facts == (q, kv, c)).all(axis=1)]) for q, kv, c in each.tolist()]

    def first_offers(self, offers: Sequence[Offer], steps: Ints, every: bool) -> Ints:
        """The first of some offers that takes the mask of each of some steps, by its index. −1 without one.

        Layers are counted one step after another, because counting is slow.

        Args:
            offers: The offers.
            steps: The steps, ascending.
            every: Whether to decide every step. Else counting ends at the first step that no offer takes.
        """
        cut = self.cut[steps]
        takes = [self._takes(offer) for offer in offers]
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

    def _takes(self, offer: Offer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The masks that an offer certainly takes, and the masks whose layers must be counted."""
        about = offer.form, offer.most, offer.unequal_lengths, offer.max_seqlen
        if about not in self._taken:
            self._taken[about] = self._find_taken(offer)
        return self._taken[about]

    def _find_taken(self, offer: Offer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        stack, most = self.stack, offer.most
        fits = stack.admits(offer.form)
        if not offer.unequal_lengths:
            fits = fits & (stack.seqlens_q == stack.seqlens_k)
        if offer.max_seqlen is not None:
            fits = fits & (np.maximum(stack.seqlens_q, stack.seqlens_k) <= offer.max_seqlen)
        if most is None:
            return fits, np.zeros_like(fits)
        if offer.form is not Form.LAYERS:
            return fits & stack.at_most(offer.form, most), np.zeros_like(fits)
        few, unsettled = stack.layer_bounds(most)
        return fits & few, fits & unsettled

    def by_rank(self, problem: Problem) -> Iterator[tuple[Problem | None, ...]]:
        """The problems of the steps of each rank, with None for an empty step."""
        asked = (self.problem(problem, index) if shown else None for index, shown in enumerate(self.shows.tolist()))
        for count in np.diff(self.bounds).tolist():
            yield tuple(islice(asked, count))

    @cached_property
    def contents(self) -> dict[tuple[object, ...], int]:
        """The first of the non-empty steps with equal problems, by the properties that distinguish them."""
        stack = self.stack
        rows = np.column_stack([stack.seqlens_q[self.cut], stack.seqlens_k[self.cut], self.heads, self.composed])
        slices = [stack.slices(cut).tobytes() for cut in range(len(stack))]
        found: dict[tuple[object, ...], int] = {}
        for index in np.flatnonzero(self.shows).tolist():
            found.setdefault((*rows[index].tolist(), slices[self.cut[index]]), index)
        return found

    def problem(self, problem: Problem, index: int) -> Problem:
        """The problem of a step. Kernels ask for the same ones."""
        known = self._problems.setdefault((self.whole_composed, *problem.settings), {})
        if index not in known:
            heads_q, heads_kv = self.heads[index].tolist()
            cut, composed = int(self.cut[index]), bool(self.composed[index])
            mask = self._masks.setdefault(cut, self.stack.mask(cut))
            known[index] = replace(problem, mask=mask, heads_q=heads_q, heads_kv=heads_kv, composed=composed)
        return known[index]


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
    if not composed:
        return iter(kept)
    return iter(_STACKS.get(mask, (layout,), lambda: _Kept(replace(stack, whole_composed=True) for stack in kept)))


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
_STACKS: PlanCache[_Kept] = PlanCache(16)


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
