"""Layouts: one strategy on one mesh with one placement, and the cost of its steps with a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Direction, KernelManifest, Layout, Offer, Problem, Transport, Verdict
from longca.manifests.pairs import halves
from longca.manifests.schedule import Schedule
from longca.manifests.step_cuts import StepStack, cut_steps
from longca.manifests.steps import Steps
from longca.masks import BlockSparseMask, Form, SliceMask
from longca_advice.costs import Estimate
from longca_advice.evidence import SharedCall
from longca_advice.fit import Call
from longca_advice.meshes import mesh_text
from longca_advice.network import Topology
from longca_advice.request import Request
from longca_advice.sources import Links
from longca_advice.step_works import PairTiles, StepCalls, pair_tiles, pairs_of
from longca_advice.timeline import Timeline, timeline
from longca_advice.work import work_of, works_of

__all__ = ["LayoutCosts", "Role", "of_role"]

_Floats = NDArray[np.float64]

#: The roles of a kernel: the forward or the backward of a pair, or both directions by itself.
Role = Literal["forward", "backward", "both"]

#: Layouts with up to this many pairs have every pair cut.
_CUT = 100

#: Layouts with up to _ALL steps are checked in full. Larger ones have _SOME steps checked, on at least _FEWEST ranks.
_ALL, _SOME, _FEWEST = 2**13, 2**11, 4

#: Slices of a mask with which a step counts once.
_SLICES = 64

#: Forms that take any cut of a mask, the most common first.
_GENERAL = (Form.ROW_INTERVALS, Form.COLUMN_INTERVALS, Form.LAYERS, Form.VARLEN, Form.DENSE)


_Of = TypeVar("_Of")
_P = ParamSpec("_P")


def remembered(method: Callable[_P, _Of]) -> Callable[_P, _Of]:
    """A method that is called once for equal arguments, which are given by place. Its results end with the instance."""

    @wraps(method)
    def call(*args: _P.args, **named: _P.kwargs) -> _Of:
        instance: Any = args[0]
        found = instance.__dict__.setdefault(f"_{method.__name__}_results", {})
        if (about := (*args[1:], *named.items())) not in found:
            found[about] = method(*args, **named)
        result: _Of = found[about]
        return result

    return call


class LayoutCosts:
    """One strategy on one mesh with one placement, and the way to move its tensors on one host."""

    def __init__(self, request: Request, links: Links, layout: Layout, transport: Transport = Transport.AUTO) -> None:
        self.request, self.links, self.layout = request, links, layout
        self.strategy, self.placement = str(layout.strategy), layout.placement or "as given"
        self.sizes = dict(layout.axis_sizes)
        self.mesh = mesh_text(self.sizes)
        self.name = f"{self.strategy} ({self.mesh}, {self.placement})"
        #: The queries and keys that meet.
        self.pairs = pairs_of(layout)
        #: Whether the mask is cut for every pair when the layout is predicted exactly.
        self.cuts_all = len(self.pairs.parts) <= _CUT
        self._has_blocks = isinstance(request.problem.mask, BlockSparseMask)
        self._has_hosts = layout.world_size > links.per_host
        #: The transport of its ranks. Those of several hosts have no links.
        self.moved_by = Transport.COLLECTIVES if self._has_hosts else transport
        self.topology = Topology(layout.axis_sizes, links.per_host if self._has_hosts else None)

    @remembered
    def _whole(self, role: Role) -> Problem:
        return of_role(self.request.problem, role)

    @remembered
    def schedule(self, direction: str) -> Schedule | None:
        """The computation and the moves of a call in a direction, or None if the strategy states no schedule."""
        problem: Problem = self.request.problem.in_direction(direction)
        about = problem, self.layout, problem.device.kind == "cuda", self.moved_by
        schedule: Schedule | None = self.request.registry.stated(self.strategy, "schedule", *about)
        return schedule

    def measured(self, direction: str) -> Mapping[str, float]:
        """The measured seconds of this very call in a direction, by kernel. Empty on several hosts."""
        schedule, request = self.schedule(direction), self.request.problem
        if schedule is None or self._has_hosts or not self.links.measured:
            return {}
        pushes = any(move.kind == "push" for phase in schedule for move in phase.moves)
        about = (
            request.concrete_mask.digest,
            (request.heads_q, request.num_heads_kv),
            (request.head_dim, request.head_dim_v),
            request.softcap is not None,
            request.dtype,
            direction,
        )
        return self.links.measured.get(SharedCall(*about, self.strategy, self.mesh, self.placement, pushes), {})

    @remembered
    def timeline(self, kernel: str, direction: str, role: Role | None = None) -> Timeline | None:
        """The breakdown of a direction's time with a kernel, or None without evidence or without a schedule.

        The cuts of the mask are predicted as the kernel takes them in a role. Without a role, the tiles of the whole
        mask are.

        Raises:
            UnsupportedError: The time of a collective is unknown.
        """
        taken = self.rough(kernel, direction) if role is None else self.exact(kernel, role, direction)
        schedule = self.schedule(direction)
        if taken is None or schedule is None:
            return None
        return timeline(schedule, self.pairs.seconds(taken), self.links.network, self.topology, self.links.rates)

    def slowest(self, kernel: str, direction: str) -> float | None:
        """The seconds that the slowest rank computes by the tiles of the whole mask, or None without evidence."""
        taken = self.rough(kernel, direction)
        return None if taken is None else float(self.pairs.seconds(taken).sum(axis=1).max())

    @remembered
    def rough(self, kernel: str, direction: str) -> _Floats | None:
        """The seconds of each pair by the tiles of the whole mask, or None if the kernel does not take such masks.

        A block-sparse mask is cut instead if there are few pairs. Its cuts are quick, and kernels differ by block.
        """
        if self._has_blocks and self.cuts_all and len(self.pairs.parts) > 1:
            found = self.exact(kernel, "forward" if direction == Direction.FORWARD else "backward", direction)
            return None if found is None or np.isinf(found).any() else found
        form = self._rough_form(kernel, direction)
        if form is None:
            return None
        if len(self.pairs.parts) == 1 and self.steps[0] is not None:
            return self._calls_of((form,)).seconds(self.request.costs, self.request.key(kernel, direction))
        return self._tiles.seconds(self.request.costs, self.request.key(kernel, direction), str(form), self.pairs.heads)

    @remembered
    def exact(self, kernel: str, role: Role, direction: str) -> _Floats | None:
        """The seconds of each pair by its cut of the mask, or None without evidence.

        They are infinite where the kernel does not take the pair in a role. A kernel counts as if it took every pair of
        a layout of many pairs.
        """
        if not self.cuts_all:
            return self.rough(kernel, direction)
        forms = tuple(offer.form if offer else None for offer in self._offers(kernel, role))
        seconds = self._calls_of(forms).seconds(self.request.costs, self.request.key(kernel, direction))
        refused = [step is not None and form is None for step, form in zip(self.steps, forms, strict=True)]
        return None if seconds is None else np.where(refused, np.inf, seconds)

    @remembered
    def _calls_of(self, forms: tuple[Form | None, ...]) -> StepCalls:
        """The calls of kernels that take each pair in a form. Kernels share them."""
        each = list(zip(self.steps, forms, strict=True))
        made = iter(works_of([(step.concrete_mask, form) for step, form in each if step and form]))
        return StepCalls.of([next(made) if step and form else None for step, form in each], self.pairs.heads)

    def _offers(self, kernel: str, role: Role) -> list[Offer | None]:
        """The offer by which a kernel takes each pair in a role, or None."""
        if self._stack is not None:
            return self.request.offers(kernel, self._whole(role), self._stack)
        return [None if step is None else self.request.resolve(kernel, step).offer for step in self._roles[role]]

    @remembered
    def refusal(self, kernel: str, role: Role) -> Verdict | None:
        """The verdict against a kernel that does not take every step in a role, or None if it takes every step."""
        if not self.cuts_all:
            verdict = self.request.resolve(kernel, self._whole(role), self._checked_layout)
            return None if verdict else verdict
        for step in self._roles[role]:
            if step is not None and not (verdict := self.request.resolve(kernel, step)):
                return verdict
        return None

    @remembered
    def estimate(self, kernel: str, role: Role, direction: str) -> Estimate | None:
        """The estimate of a kernel's largest step, or None without evidence or if all steps are empty."""
        if self.largest is None:
            return None
        offer = self.request.resolve(kernel, of_role(self.largest, role)).offer
        work = work_of(self.largest.concrete_mask, offer.form if offer else Form.ROW_INTERVALS)
        return self.request.costs.estimate(self.request.key(kernel, direction), Call(work, *self.pairs.heads))

    @cached_property
    def largest(self) -> Problem | None:
        """The problem of the step with most visible pairs, or None if all steps are empty."""
        return max((step for step in self.steps if step is not None), key=lambda step: step.area, default=None)

    @property
    def checked(self) -> str:
        """In words, how many steps were checked. Empty if all were checked."""
        if self.cuts_all or len(self._checked_ranks) == len(self._unlike_ranks):
            return ""
        checked, unlike = len(self._checked_ranks), len(self._unlike_ranks)
        return f"whether the kernels take every step was checked on {checked} of {unlike} ranks that differ"

    @cached_property
    def _unlike_ranks(self) -> list[int]:
        """The ranks whose pairs differ, the first of each."""
        found: dict[bytes, int] = {}
        for rank, pairs in enumerate(self.pairs.index):
            found.setdefault(pairs.tobytes(), rank)
        return list(found.values())

    @cached_property
    def _checked_ranks(self) -> list[int]:
        """The ranks whose steps are checked, chosen among distinct ranks and limited by the time for an answer."""
        ranks, steps = self._unlike_ranks, max(1, self.pairs.index.shape[1])
        mask = self.request.problem.concrete_mask
        # A cut takes as long as the mask has slices.
        each = steps * max(1, len(mask.array) // _SLICES if isinstance(mask, SliceMask) else 1)
        if not self.request.anywhere or len(ranks) * each <= _ALL:  # what is taken here has to run
            return ranks
        most = min(len(ranks), max(_FEWEST, _SOME // each))
        return [ranks[place] for place in np.linspace(0, len(ranks) - 1, most).astype(np.int64)]

    @cached_property
    def _checked_layout(self) -> Layout:
        """The layout, with the steps of the ranks that are checked alone."""
        steps, taken = self.layout.table, np.zeros(self.layout.world_size, np.bool_)
        taken[self._checked_ranks] = True
        bounds = np.r_[0, np.cumsum(np.diff(steps.bounds) * taken)]
        return replace(self.layout, steps=Steps(steps.parts, steps.heads, steps.table[taken[steps.ranks]], bounds))

    @cached_property
    def steps(self) -> list[Problem | None]:
        """The problem of each pair, or None for an empty pair. In a large layout, the problem of the largest pair."""
        if (stack := self._stack) is not None:
            shown = stack.shows.tolist()
            return [stack.problem(self.request.problem, index) if shows else None for index, shows in enumerate(shown)]
        parts, (heads_q, heads_kv) = self.layout.table.parts, self.pairs.heads
        rows = self.pairs.parts if self.cuts_all else self.pairs.parts[[self._tiles.largest]]
        whole = self.request.problem
        steps = [
            whole.narrowed(range(heads_q), range(heads_kv), (parts[q], parts[k]))
            if len(self.pairs.parts) > 1
            else whole.narrowed(range(heads_q), range(heads_kv))
            for q, k in rows.tolist()
        ]
        composed = self.pairs.index.shape[1] > 1
        return [None if step.concrete_mask.is_empty else replace(step, composed=composed) for step in steps]

    @cached_property
    def _stack(self) -> StepStack | None:
        """The cuts of all pairs, made together. None for a mask of blocks, a single pair, or too many pairs."""
        mask, pairs = self.request.problem.mask, self.pairs
        if not isinstance(mask, SliceMask) or not 1 < len(pairs.parts) <= _CUT:
            return None
        steps, every = self.layout.table, np.arange(len(pairs.parts) + 1)
        table = np.column_stack([pairs.parts, np.zeros_like(every[1:])])
        cut = Steps(steps.parts, steps.heads[:1], table, every[[0, -1]])
        composed = pairs.index.shape[1] > 1
        return replace(next(cut_steps(mask, cut, composed)), ranks=every[:-1], bounds=every)

    @cached_property
    def _roles(self) -> dict[Role, list[Problem | None]]:
        """The problems of the steps for a kernel in each role."""
        roles: tuple[Role, ...] = ("forward", "backward", "both")
        return {role: [None if step is None else of_role(step, role) for step in self.steps] for role in roles}

    def _rough_form(self, kernel: str, direction: str) -> Form | None:
        """A form in which a kernel is likely to take the steps."""
        if len(self.pairs.parts) == 1 and self.steps[0] is not None:
            verdict = self.request.resolve(kernel, self.steps[0].in_direction(Direction.FORWARD))
            return verdict.offer.form if verdict.offer else None
        forms = _forms_in(self.request.registry.manifest(kernel), direction)
        if self._has_blocks:
            return Form.BLOCK_SPARSE if Form.BLOCK_SPARSE in forms else None
        return next((form for form in _GENERAL if form in forms), None)

    @cached_property
    def _tiles(self) -> PairTiles:
        return pair_tiles(self.request.problem.concrete_mask, self.layout, self.pairs)


@lru_cache(maxsize=256)
def _forms_in(manifest: KernelManifest, direction: str) -> frozenset[Form]:
    """The forms in which a kernel has a direction."""
    return frozenset(offer.form for offer in manifest.offers if direction in offer.directions)


def of_role(step: Problem, role: Role) -> Problem:
    """The problem of a step for a kernel in a role."""
    if role == "both":
        return step.in_direction(Direction.BACKWARD)
    forward, backward = halves(step)
    if role == "forward":
        return replace(forward, composed=step.composed)
    return backward
