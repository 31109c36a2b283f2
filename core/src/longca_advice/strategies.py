"""Ranking strategies: every strategy, mesh and placement on some ranks, each with its quickest kernels.

All layouts are predicted by the tiles of the whole mask first, which takes no cut. The most promising ones are then
predicted exactly, from the cut of each step, and their kernels are checked, until as many are known as an answer shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from longca.errors import UnsupportedError
from longca.manifests import Layout
from longca.manifests.pairs import split
from longca_advice.candidates import PAIR, Candidate, Ranking
from longca_advice.choices import Choice, Refused, Unmeasured
from longca_advice.layout_costs import LayoutCosts, Role
from longca_advice.memory import RankMemory
from longca_advice.meshes import few_meshes, left_out, mesh_text
from longca_advice.request import Request
from longca_advice.sources import Links
from longca_advice.timeline import Timeline
from longca_advice.why import why_first

__all__ = ["StrategyCandidate", "candidate_of", "exactly", "layout_costs_of", "rank_strategies", "roughly"]

#: Layouts that are predicted exactly: the least number, if so many exist, and the greatest.
_EXACT, _AT_MOST = 8, 12

#: From this number of ranks on, half as many layouts are predicted exactly.
_MANY = 128

#: The factor by which a kernel may look slower than the fastest valid one and still be predicted exactly.
_SLOWER = 1.6

#: The factor by which predictions of strategies are wider than predictions of their kernels, on either side. A layout
#: with measured calls of its own is left for another one only if that gains more.
_STRATEGY = 1.06

#: Share of the time spent waiting for other hosts, from which on a ring is advised against.
_MUCH = 0.25

#: The roles of the kernels of a pair.
_HALVES: tuple[Role, Role] = ("forward", "backward")


@dataclass(frozen=True, eq=False)
class StrategyCandidate(Candidate):
    """A strategy's layout with its kernels, and the breakdown of each direction's time."""

    costs: LayoutCosts
    timelines: tuple[Timeline, ...]

    @property
    def title(self) -> str:
        """The kernel and the layout in a few words."""
        return f"{self.kernel} with {self.costs.name}"

    @cached_property
    def measured(self) -> tuple[float | None, ...]:
        """The measured seconds of this very call in each direction, or None."""
        each = zip(self.kernels, self.request.directions, strict=True)
        return tuple(self.costs.measured(direction).get(kernel) for kernel, direction in each)

    @property
    def each(self) -> tuple[float, ...]:
        """Seconds of each direction: measured ones, or else predicted ones."""
        both = zip(self.measured, self.timelines, strict=True)
        return tuple(timeline.seconds if known is None else known for known, timeline in both)

    @property
    def ranked(self) -> float:
        """Seconds to rank by. A pair must be clearly faster than a layout with one kernel."""
        return self._cautious * (1 / PAIR if split(self.kernel) else 1.0)

    @property
    def _cautious(self) -> float:
        """Its seconds. A part that was not measured counts as slow as its interval allows.

        That is the part of the interval that strategies add, and the kernel's part if such kernel calls are unseen.
        """
        found = self.estimates
        slower = sum(one.ranked for one in found) / sum(one.seconds for one in found) if found else 1.0
        return self._known + (self.seconds - self._known) * slower * _STRATEGY

    @property
    def measured_text(self) -> str:
        """In words, which of its times are measured ones of this very call. Empty if none is."""
        known = zip(self.request.directions, self.measured, strict=True)
        names = [f"the {direction}" for direction, seconds in known if seconds is not None]
        if not names:
            return ""
        verb = "are measured times" if len(names) > 1 else "is a measured time"
        return f"{' and '.join(names)} {verb} of this mask with this strategy, mesh and placement"

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval that holds the time with 90 %. A measured time varies too."""
        low = min((one.low / one.seconds for one in self.estimates), default=0.8) / _STRATEGY
        high = max((one.high / one.seconds for one in self.estimates), default=1.25) * _STRATEGY
        known, rest = self._known, self.seconds - self._known
        return known / _STRATEGY + rest * low, known * _STRATEGY + rest * high

    def causes(self, place: int) -> Mapping[str, float]:
        """The seconds of a direction on the rank that ends last, by cause. Empty if its time is a measured one."""
        if self.measured[place] is not None:
            return {}
        found = self.timelines[place]
        rest = found.seconds - found.compute - found.exposed
        return {"kernels": found.compute, "transfers": found.exposed, "overhead": rest}

    @property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """None: the interval of both directions together is known."""
        return ()

    @property
    def layout(self) -> Layout:
        """The layout by which ranks share the problem."""
        return self.costs.layout

    @cached_property
    def memory(self) -> RankMemory:
        """The memory of a call on the rank that needs most."""
        return self.request.memory(self.kernels, self.layout, self.costs.moved_by)

    def choice(self) -> Choice:
        """The candidate as a choice, with its layout."""
        costs, found = self.costs, super().choice()
        notes = (*found.proof.notes, *filter(None, [costs.checked, self.measured_text]))
        return replace(
            found,
            proof=replace(found.proof, outside=(*_unseen(costs), *found.proof.outside), notes=notes),
            tflops=found.tflops / costs.layout.world_size,
            strategy=costs.strategy,
            placement=costs.placement,
            mesh=costs.mesh,
        )

    @property
    def _known(self) -> float:
        """Seconds of the measured directions."""
        return sum(seconds for seconds in self.measured if seconds is not None)

    @property
    def call(self) -> str:
        """The lines to paste, without the closing parenthesis."""
        costs = self.costs
        sizes = ", ".join(map(str, costs.sizes.values()))
        names = ", ".join(f'"{axis}"' for axis in costs.sizes)
        comma = "," if len(costs.sizes) == 1 else ""
        return (
            "from torch.distributed.device_mesh import init_device_mesh\n"
            f'mesh = init_device_mesh("{self.request.problem.device.kind}", ({sizes}{comma}), '
            f"mesh_dim_names=({names}{comma}))\n"
            f"longca.attention(q, k, v, mask, kernel={self.kernel!r}, strategy={costs.strategy!r}, mesh=mesh, "
            f"placement={costs.placement!r}"
        )


def rank_strategies(request: Request, ranks: int, links: Links, strategies: Sequence[str]) -> Ranking:
    """The strategies that take a problem on some ranks. Each mesh and placement has its fastest kernels."""
    refused: list[Refused] = []
    unmeasured: dict[str, Unmeasured] = {}
    rough: list[StrategyCandidate] = []
    for costs in layout_costs_of(request, ranks, links, strategies):
        if isinstance(costs, Refused):
            refused.append(costs)
            continue
        try:
            rough.append(roughly(costs))
        except UnsupportedError as error:
            unmeasured.setdefault(costs.strategy, Unmeasured("any kernel", str(error).rstrip("."), costs.strategy))
    left = sorted(rough, key=lambda one: one.seconds)
    choices: list[Choice] = []
    ranked: list[StrategyCandidate] = []  # those of the choices
    exact: list[StrategyCandidate] = []
    blind: list[str] = []  # layouts without evidence: valid, and not ranked
    while left and not any(choice.fits is not False for choice in choices):
        found, more, left = _refined(left)
        exact += found
        refused += (one for one in more if one.reasons)
        blind += (str(one.strategy) for one in more if not one.reasons)
        for one in found:
            try:
                choices.append(one.choice())
                ranked.append(one)
            except UnsupportedError as error:  # a step that was not checked may be refused
                refused.append(Refused(None, one.costs.name, (str(error),)))
    known = {choice.strategy for choice in choices}
    without = tuple(one for name, one in unmeasured.items() if name not in known)
    manifests = [request.registry.strategy(name) for name in strategies]
    notes = (text for one in manifests for text in left_out(ranks, one.name, one.axes, links.per_host))
    unranked = [f"no evidence ranks {', '.join(blind)}"] if blind else []
    said = (*notes, *_across(exact), *unranked)
    return Ranking(tuple(choices), without, tuple(refused), said, why_first(ranked))


def layout_costs_of(
    request: Request, ranks: int, links: Links, strategies: Sequence[str]
) -> Iterator[LayoutCosts | Refused]:
    """Every distinct layout, once. A placement without a layout is refused with the reason."""
    for name in strategies:
        manifest = request.registry.strategy(name)
        sizes_of_all = few_meshes(ranks, manifest.axes, links.per_host)
        if not sizes_of_all:
            axes = " × ".join(manifest.axes)
            yield Refused(None, name, (f"{ranks} devices cannot be split into {axes}, 2 or more along each",))
        refusals: dict[str, list[tuple[str, str]]] = {}
        for sizes in sizes_of_all:
            layouts: dict[Layout, None] = {}
            for placement in manifest.placements:
                try:
                    layouts.setdefault(request.registry.layout(name, request.problem, sizes, placement))
                except UnsupportedError as error:
                    refusals.setdefault(str(error), []).append((mesh_text(sizes), placement))
            yield from (LayoutCosts(request, links, layout) for layout in layouts)
        for reason, found in refusals.items():
            yield Refused(None, _part_of(name, found, len(sizes_of_all), len(manifest.placements)), (reason,))


def _part_of(name: str, found: Sequence[tuple[str, str]], meshes: int, placements: int) -> str:
    """The name of a strategy, with the affected meshes and placements unless all of them are affected."""
    some, placed = dict.fromkeys(mesh for mesh, _ in found), dict.fromkeys(placement for _, placement in found)
    on = "" if len(some) == meshes else f" on {len(some)} of {meshes} meshes"
    return name + on + ("" if len(placed) == placements else f" placed {', '.join(placed)}")


def roughly(costs: LayoutCosts, named: tuple[str, ...] | None = None) -> StrategyCandidate:
    """A layout with the named kernels, or the quickest ones, by the tiles of the whole mask.

    Raises:
        UnsupportedError: There is no prediction.
    """
    if any(costs.schedule(direction) is None for direction in costs.request.directions):
        raise UnsupportedError(f"{costs.strategy} states no schedule, so its time is not predicted")
    # The fastest kernel on a layout is the one whose slowest rank computes least.
    kernels = named or [min(each, key=lambda name: each[name], default="") for each in _slowest(costs)]
    found = candidate_of(costs, kernels, exactly=False) if all(kernels) else None
    if found is None:
        raise UnsupportedError(f"no evidence on {costs.request.device_name}")
    return found


def _slowest(costs: LayoutCosts) -> list[dict[str, float]]:
    """For each direction, the seconds that the slowest rank computes with each kernel that has evidence."""
    found = []
    for direction in costs.request.directions:
        seconds = {name: costs.slowest(name, direction) for name in costs.request.kernels_in(direction)}
        found.append({name: each for name, each in seconds.items() if each is not None})
    return found


def _refined(
    rough: Sequence[StrategyCandidate],
) -> tuple[list[StrategyCandidate], list[Refused], list[StrategyCandidate]]:
    """The best layouts, predicted exactly, until enough are known and the others are predicted to be slower.

    They are the valid layouts (the fastest first), the refused layouts, and the layouts that were not predicted.
    """
    known: list[StrategyCandidate] = []
    refused: list[Refused] = []
    for place, one in enumerate(rough):
        half = 2 if one.costs.layout.world_size >= _MANY else 1
        least = _EXACT // half
        enough = len(known) >= least and one.seconds > sorted(found.ranked for found in known)[least - 1]
        if enough or len(known) == _AT_MOST // half:
            return sorted(known, key=lambda found: found.ranked), refused, list(rough[place:])
        found = exactly(one.costs)
        known += [] if isinstance(found, Refused) else [found]
        refused += [found] if isinstance(found, Refused) else []
    return sorted(known, key=lambda found: found.ranked), refused, []


def exactly(costs: LayoutCosts, named: tuple[str, ...] | None = None) -> StrategyCandidate | Refused:
    """A layout with its fastest valid kernels, or the reasons why it has none. No evidence is no reason."""
    kernels = dict.fromkeys(named) if named else _promising(costs)
    directions = costs.request.directions
    roles: tuple[Role, ...] = ("forward", "backward", "both") if len(directions) > 1 else ("forward",)
    refusals = {(name, role): costs.refusal(name, role) for name, role in product(kernels, roles)}
    valid = (
        names
        for names in product(kernels, repeat=len(directions))
        if (costs.request.allows(names) if named is None else names == named)
        and all(refusals[each] is None for each in zip(names, _roles_of(names), strict=True))
    )
    found = [one for names in valid if (one := candidate_of(costs, names)) is not None]
    if found:
        return min(found, key=lambda one: one.ranked)
    reasons = dict.fromkeys(
        f"{name}: {reason}" for (name, _), verdict in refusals.items() if verdict for reason in verdict.reasons
    )
    return Refused(None, costs.name, tuple(reasons))


def _promising(costs: LayoutCosts) -> list[str]:
    """Kernels that may be the quickest in a direction: by the tiles of the mask little slower than a valid one."""
    found: dict[str, None] = {}
    directions, has_pairs = costs.request.directions, costs.request.has_own_capability
    roles: tuple[Role, ...] = ("forward", "backward") if has_pairs or len(directions) == 1 else ("both", "both")
    for role, seconds in zip(roles, _slowest(costs), strict=False):
        limit = float("inf")
        for name in sorted(seconds, key=lambda name: seconds[name]):
            if seconds[name] > limit:
                break
            found.setdefault(name)
            if limit == float("inf") and costs.refusal(name, role) is None:
                limit = _SLOWER * seconds[name]
    return list(found)


def _roles_of(kernels: Sequence[str]) -> tuple[Role, ...]:
    """The role of each direction's kernel."""
    return ("both", "both") if len(set(kernels)) < len(kernels) else _HALVES[: len(kernels)]


def _unseen(costs: LayoutCosts) -> Iterator[str]:
    """In words, that collectives of as many ranks were not measured."""
    measured = max((ranks for kinds in costs.links.network.inside.values() for ranks in kinds), default=1)
    if costs.layout.world_size > measured:
        yield f"{costs.layout.world_size} devices; measured up to {measured}"


def _across(found_exactly: Sequence[StrategyCandidate]) -> Iterator[str]:
    """Remarks on links between hosts: they were not measured, and some layouts wait for them a long time."""
    for one in found_exactly[:1]:
        named = any(link.name for links in one.costs.links.network.inside.values() for link in links.values())
        if named or one.costs.topology.ranks_per_host is not None:
            where = "of transfers within hosts" if named else "between hosts"
            yield f"times {where} are computed from the bandwidth that was given; none was measured (unverified)"
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


def candidate_of(costs: LayoutCosts, kernels: Sequence[str], exactly: bool = True) -> StrategyCandidate | None:
    """A layout with a kernel for each direction, or None if a time is unknown.

    The cut of each step is predicted exactly, or else the tiles of the whole mask. Each kernel takes every step then.

    Raises:
        UnsupportedError: The time of a collective is unknown.
    """
    each = zip(kernels, costs.request.directions, _roles_of(kernels), strict=True)
    found = [costs.timeline(kernel, direction, role if exactly else None) for kernel, direction, role in each]
    known = tuple(timeline for timeline in found if timeline is not None)
    if len(known) < len(found):
        return None
    halves = zip(kernels, _HALVES, costs.request.directions, strict=False) if exactly else ()
    estimates = (costs.estimate(*half) for half in halves)
    about = costs.request, tuple(kernels), tuple(one for one in estimates if one is not None)
    return StrategyCandidate(*about, costs, known)
