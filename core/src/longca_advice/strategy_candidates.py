"""Strategy candidates: a strategy's layout with a kernel for each direction, its time, and the choice that it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from longca.manifests.pairs import join, split
from longca_advice.candidates import PAIR, proof_of
from longca_advice.choices import Choice, Proof
from longca_advice.costs import Estimate
from longca_advice.layout_costs import LayoutCosts, Role
from longca_advice.memory import RankMemory
from longca_advice.timeline import Timeline

__all__ = ["StrategyCandidate", "across", "candidate_of", "roles_of", "span"]

#: The factor by which predictions of strategies are wider than predictions of their kernels, on either side. A layout
#: with measured calls of its own is left for another one only if that gains more.
_STRATEGY = 1.06

#: Share of the time spent waiting for other hosts, from which on a ring is advised against.
_MUCH = 0.25

#: The roles of the kernels of a pair.
_HALVES: tuple[Role, Role] = ("forward", "backward")


@dataclass(frozen=True, eq=False)
class StrategyCandidate:
    """A layout with its kernels, and the breakdown of each direction's time.

    Attributes:
        costs: The strategy, its mesh and its placement.
        kernels: The kernel of each direction.
        timelines: The breakdown of each direction's time.
    """

    costs: LayoutCosts
    kernels: tuple[str, ...]
    timelines: tuple[Timeline, ...]

    @property
    def kernel(self) -> str:
        """The name of the kernel, or of the pair."""
        return join(self.kernels[0], self.kernels[-1])

    @property
    def title(self) -> str:
        """The kernel and the layout in a few words."""
        return f"{self.kernel} with {self.costs.name}"

    @cached_property
    def measured(self) -> tuple[float | None, ...]:
        """The measured seconds of this very call in each direction, or None."""
        each = zip(self.kernels, self.costs.request.directions, strict=True)
        return tuple(self.costs.measured(direction).get(kernel) for kernel, direction in each)

    @property
    def each(self) -> tuple[float, ...]:
        """Seconds of each direction: measured ones, or else predicted ones."""
        both = zip(self.measured, self.timelines, strict=True)
        return tuple(timeline.seconds if known is None else known for known, timeline in both)

    @property
    def seconds(self) -> float:
        """Seconds of all directions."""
        return sum(self.each)

    @property
    def ranked(self) -> float:
        """Seconds to rank by. A pair must be clearly faster than a layout with one kernel."""
        return self._cautious * (1 / PAIR if split(self.kernel) else 1.0)

    @property
    def _cautious(self) -> float:
        """Its seconds. A part that was not measured counts as slow as its interval allows.

        That is the part of the interval that strategies add, and the kernel's part if such kernel calls are unseen.
        """
        found = self._estimates
        slower = sum(one.ranked for one in found) / sum(one.seconds for one in found) if found else 1.0
        return self._known + (self.seconds - self._known) * slower * _STRATEGY

    @property
    def measured_text(self) -> str:
        """In words, which of its times are measured ones of this very call. Empty if none is."""
        known = zip(self.costs.request.directions, self.measured, strict=True)
        names = [f"the {direction}" for direction, seconds in known if seconds is not None]
        if not names:
            return ""
        verb = "are measured times" if len(names) > 1 else "is a measured time"
        return f"{' and '.join(names)} {verb} of this mask with this strategy, mesh and placement"

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval that holds the time with 90 %."""
        low, high = span(self._estimates)
        known, rest = self._known, self.seconds - self._known
        return known / _STRATEGY + rest * low, known * _STRATEGY + rest * high

    @property
    def proof(self) -> Proof:
        """The evidence behind the prediction."""
        return proof_of(self._estimates)

    @cached_property
    def memory(self) -> RankMemory:
        """The memory of a call."""
        costs = self.costs
        return costs.request.memory(self.kernels, costs.strategy, costs.sizes, costs.layout, costs.moved_by)

    @property
    def fits(self) -> bool:
        """Whether the rank that needs most has the memory, as far as it is known."""
        request = self.costs.request
        return request.capacity is None or request.capacity.fits(self.memory.total)

    def choice(self) -> Choice:
        """The way as a choice, with its memory and the code to paste.

        Raises:
            UnsupportedError: A kernel does not take a step that was not checked before.
        """
        costs, proof = self.costs, self.proof
        notes = (*proof.notes, *filter(None, [costs.checked, self.measured_text]))
        return costs.request.choice(
            self.kernels,
            self.each,
            self.interval,
            self.memory,
            costs.layout.world_size,
            ranked=self.ranked,
            proof=Proof(proof.records, proof.nearest, (*_unseen(costs), *proof.outside), proof.versions, notes),
            call=self._call_text,
            unverified=self.costs.request.unverified(self.kernel, self.costs.layout),
            strategy=costs.strategy,
            placement=costs.placement,
            mesh=costs.mesh,
        )

    @property
    def _known(self) -> float:
        """Seconds of the measured directions."""
        return sum(seconds for seconds in self.measured if seconds is not None)

    @cached_property
    def _estimates(self) -> list[Estimate]:
        """The estimates of the kernels, each in its direction, by the largest step."""
        each = zip(self.kernels, _HALVES, self.costs.request.directions, strict=False)
        return [estimate for one in each if (estimate := self.costs.estimate(*one)) is not None]

    @property
    def _call_text(self) -> str:
        """The lines to paste."""
        costs = self.costs
        sizes = ", ".join(map(str, costs.sizes.values()))
        names = ", ".join(f'"{axis}"' for axis in costs.sizes)
        comma = "," if len(costs.sizes) == 1 else ""
        return (
            "from torch.distributed.device_mesh import init_device_mesh\n"
            f'mesh = init_device_mesh("{costs.request.problem.device.kind}", ({sizes}{comma}), '
            f"mesh_dim_names=({names}{comma}))\n"
            f"longca.attention(q, k, v, mask, kernel={self.kernel!r}, strategy={costs.strategy!r}, mesh=mesh, "
            f"placement={costs.placement!r})"
        )


def span(known: Sequence[Estimate]) -> tuple[float, float]:
    """The ends of the interval of a strategy's time, as factors on the time, from the estimates of its kernels."""
    low = min((estimate.low / estimate.seconds for estimate in known), default=0.8)
    high = max((estimate.high / estimate.seconds for estimate in known), default=1.25)
    return low / _STRATEGY, high * _STRATEGY


def _unseen(costs: LayoutCosts) -> Iterator[str]:
    """In words, that collectives of as many ranks were not measured."""
    measured = max((ranks for kinds in costs.links.network.inside.values() for ranks in kinds), default=1)
    if costs.layout.world_size > measured:
        yield f"{costs.layout.world_size} devices; measured up to {measured}"


def across(found_exactly: Sequence[StrategyCandidate]) -> Iterator[str]:
    """Remarks on links between hosts: they were not measured, and some layouts wait for them a long time."""
    if any(one.costs.topology.ranks_per_host is not None for one in found_exactly):
        yield "times between hosts are computed from the bandwidth that was given; none was measured (unverified)"
    for one in found_exactly:
        topology, last = one.costs.topology, one.timelines[-1]
        axes = [axis for axis in topology.sizes if topology.shared(axis) < topology.sizes[axis]]
        link = one.costs.links.network.between
        if axes and link is not None and last.exposed > _MUCH * last.seconds:
            # Moves that now take the exposed time beside the kernels' would have to fit behind the kernels.
            need = (last.compute + last.exposed) / max(last.compute, 1e-12) * link.bandwidth
            hybrid = ". A hybrid, such as usp with its inner axis in a host, waits less" * (len(topology.sizes) == 1)
            yield (
                f"{one.costs.name} waits {last.exposed / last.seconds:.0%} of the time for links between hosts of "
                f"{link.bandwidth / 1e9:.0f} GB/s. It would wait little with {need / 1e9:.0f} GB/s{hybrid}"
            )


def roles_of(kernels: Sequence[str]) -> tuple[Role, ...]:
    """The role of each direction's kernel."""
    return ("both", "both") if len(set(kernels)) < len(kernels) else _HALVES[: len(kernels)]


def candidate_of(costs: LayoutCosts, kernels: Sequence[str], exactly: bool = True) -> StrategyCandidate | None:
    """A layout with a kernel for each direction, or None if a time is unknown.

    Args:
        costs: The way.
        kernels: The kernel of each direction. Each one takes every step, if the layout is predicted exactly.
        exactly: Whether to predict the cut of each step, or the tiles of the whole mask.

    Raises:
        UnsupportedError: The time of a collective is unknown.
    """
    each = zip(kernels, costs.request.directions, roles_of(kernels), strict=True)
    found = [costs.timeline(kernel, direction, role if exactly else None) for kernel, direction, role in each]
    known = tuple(timeline for timeline in found if timeline is not None)
    return StrategyCandidate(costs, tuple(kernels), known) if len(known) == len(found) else None
