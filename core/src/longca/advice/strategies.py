"""Ranking strategies: every strategy, mesh and placement on some ranks, each with its quickest kernels.

All ways are weighed by the tiles of the whole mask first, which takes no cut. The most promising ones are then weighed
exactly, from the cut of each step, and their kernels are checked, until as many are known as an answer shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from longca.advice.asked import Asked
from longca.advice.calls import StrategyCall
from longca.advice.choices import Choice, Proof, Refused, Seconds, Unmeasured
from longca.advice.costs import Estimate
from longca.advice.fit import Call
from longca.advice.kernels import Ranking, proof_of
from longca.advice.memory import rank_bytes
from longca.advice.meshes import left_out
from longca.advice.timeline import Timeline
from longca.advice.ways import Links, Role, Way, of_role, ways_of
from longca.advice.work import work_of
from longca.errors import UnsupportedError
from longca.manifests import Problem
from longca.manifests.pairs import join
from longca.masks import Form

__all__ = ["known_of", "rank_strategies", "span"]

_Floats = NDArray[np.float64]

#: Ways that are weighed exactly: the least number, if so many exist, and the greatest.
_EXACT, _AT_MOST = 8, 12

#: From this number of ranks on, half as many ways are weighed exactly.
_MANY = 128

#: The factor by which predictions of strategies are wider than predictions of their kernels, on either side.
_STRATEGY = 1.06

#: The factor by which a kernel may look slower than the fastest and still be weighed exactly.
_SLOWER = 1.6

#: Share of the time spent waiting for other hosts, from which on a ring is advised against.
_MUCH = 0.25


@dataclass(frozen=True)
class _Weighed:
    """A way with its fastest kernels, and the breakdown of each direction's time."""

    way: Way
    kernels: tuple[str, ...]
    timelines: tuple[Timeline, ...]

    @property
    def total(self) -> float:
        return sum(timeline.seconds for timeline in self.timelines)


def rank_strategies(asked: Asked, ranks: int, links: Links, strategies: Sequence[str]) -> Ranking:
    """The strategies that take a problem on some ranks. Each mesh and placement has its fastest kernels.

    Args:
        asked: The question.
        ranks: Ranks, 2 or more.
        links: The links between the ranks.
        strategies: Strategies to choose from.
    """
    refused: list[Refused] = []
    unmeasured: dict[str, Unmeasured] = {}
    rough: list[_Weighed] = []
    for way in ways_of(asked, ranks, links, strategies):
        if isinstance(way, Refused):
            refused.append(way)
            continue
        try:
            rough.append(_roughly(way))
        except _NotKnownError as error:
            unmeasured.setdefault(way.strategy, Unmeasured("any kernel", str(error), way.strategy))
        except UnsupportedError as error:
            unmeasured.setdefault(way.strategy, Unmeasured("any kernel", str(error).rstrip("."), way.strategy))
    left = sorted(rough, key=lambda one: one.total)
    choices: list[Choice] = []
    exact: list[_Weighed] = []
    while left and not any(choice.fits is not False for choice in choices):
        found, more, left = _refined(left)
        exact += found
        refused += more
        for one in found:
            try:
                choices.append(_choice(one))
            except UnsupportedError as error:  # a step that was not checked may be refused
                refused.append(Refused(None, _name(one.way), (str(error),)))
    known = {choice.strategy for choice in choices}
    without = tuple(one for name, one in unmeasured.items() if name not in known)
    manifests = [asked.registry.strategy(name) for name in strategies]
    notes = (text for one in manifests for text in left_out(ranks, one.name, one.axes, links.per_host))
    return Ranking(tuple(choices), without, tuple(refused), (*notes, *_across(exact)))


class _NotKnownError(UnsupportedError):
    """There is no prediction, because evidence or the strategy's schedule is missing."""


def _calls(way: Way) -> list[StrategyCall]:
    """The calls of all directions."""
    calls = [way.call(direction) for direction in way.asked.directions]
    found = [call for call in calls if call is not None]
    if len(found) < len(calls):
        raise _NotKnownError(f"{way.strategy} does not say what it moves")
    return found


def _roughly(way: Way) -> _Weighed:
    """A way with the kernels that are quickest by the tiles of the whole mask.

    Raises:
        UnsupportedError: There is no prediction.
    """
    names, timelines = [], []
    for call in _calls(way):
        seconds = {name: way.rough(name, call.problem.direction) for name in way.asked.kernels}
        steps = {name: way.pairs.seconds(taken) for name, taken in seconds.items() if taken is not None}
        if not steps:
            raise _NotKnownError(f"no evidence on {way.asked.device_name}")
        # The fastest kernel on a layout is the one whose slowest rank computes least.
        best = min(steps, key=lambda name: float(steps[name].sum(axis=1).max()))
        names.append(best)
        timelines.append(call.takes(steps[best], way.links.network, way.links.rates))
    return _Weighed(way, tuple(names), tuple(timelines))


def _refined(rough: Sequence[_Weighed]) -> tuple[list[_Weighed], list[Refused], list[_Weighed]]:
    """The best ways, weighed exactly, until enough are known and the remaining ways are predicted to be slower.

    Returns:
        The valid ways (the fastest first), the refused ways, and the ways that were not weighed.
    """
    known: list[_Weighed] = []
    refused: list[Refused] = []
    for place, one in enumerate(rough):
        half = 2 if one.way.layout.world_size >= _MANY else 1
        least = _EXACT // half
        enough = len(known) >= least and one.total > sorted(found.total for found in known)[least - 1]
        if enough or len(known) == _AT_MOST // half:
            return sorted(known, key=lambda found: found.total), refused, list(rough[place:])
        found = _exactly(one.way)
        known += [] if isinstance(found, Refused) else [found]
        refused += [found] if isinstance(found, Refused) else []
    return sorted(known, key=lambda found: found.total), refused, []


def _exactly(way: Way) -> _Weighed | Refused:
    """A way with its fastest valid kernels, or the reasons why it has none."""
    calls = _calls(way)
    kernels = _promising(way)
    roles: tuple[Role, ...] = ("forward", "backward", "both") if way.asked.training else ("forward",)
    refusals = {(name, role): way.refusal(name, role) for name, role in product(kernels, roles)}
    valid = {role: [name for name in kernels if refusals[name, role] is None] for role in roles}
    timelines: dict[tuple[str, str, str], Timeline] = {}
    for role, call in product(roles, calls):
        direction = call.problem.direction
        if role in ("both", direction):
            for name in valid[role]:
                if (taken := way.exact(name, role, direction)) is not None:
                    steps = way.pairs.seconds(taken)
                    timelines[name, role, direction] = call.takes(steps, way.links.network, way.links.rates)
    found = list(_combinations(way, timelines))
    if found:
        return min(found, key=lambda one: one.total)
    reasons = dict.fromkeys(
        f"{name}: {reason}" for (name, _), verdict in refusals.items() if verdict for reason in verdict.reasons
    )
    return Refused(None, _name(way), tuple(reasons) or ("no evidence",))


def _name(way: Way) -> str:
    return f"{way.strategy} ({way.mesh}, {way.placement})"


def _promising(way: Way) -> list[str]:
    """Kernels that may be the quickest in a direction: not much slower by the tiles of the whole mask."""
    found: dict[str, None] = {}
    for direction in way.asked.directions:
        taken = {name: way.rough(name, direction) for name in way.asked.kernels}
        sums = {name: float(way.pairs.seconds(each).sum(1).max()) for name, each in taken.items() if each is not None}
        found |= dict.fromkeys(name for name, total in sums.items() if total <= _SLOWER * min(sums.values()))
    return list(found)


def _combinations(way: Way, timelines: dict[tuple[str, str, str], Timeline]) -> Iterator[_Weighed]:
    """A way with each kernel and each pair that takes it."""
    directions = way.asked.directions
    if len(directions) == 1:
        for (name, _, _), timeline in timelines.items():
            yield _Weighed(way, (name,), (timeline,))
        return
    for name in dict.fromkeys(name for name, role, _ in timelines if role == "both"):
        both = [timelines.get((name, "both", direction)) for direction in directions]
        found = tuple(timeline for timeline in both if timeline is not None)
        if len(found) == len(directions):
            yield _Weighed(way, (name, name), found)
    firsts = [(name, timeline) for (name, role, _), timeline in timelines.items() if role == "forward"]
    seconds = [(name, timeline) for (name, role, _), timeline in timelines.items() if role == "backward"]
    for (forward, before), (backward, after) in product(firsts, seconds):
        if forward != backward:
            yield _Weighed(way, (forward, backward), (before, after))


def _choice(one: _Weighed) -> Choice:
    way, asked = one.way, one.way.asked
    forward, backward = one.kernels[0], one.kernels[1] if asked.training else None
    memory = rank_bytes(
        asked.registry,
        asked.problem,
        forward,
        backward,
        way.strategy,
        way.sizes,
        way.layout,
        asked.training,
        nccl=asked.problem.device.kind == "cuda",
        anywhere=True,
    )
    known = known_of(way, one.kernels)
    low, high = span(known)
    proof = proof_of(known) if known else Proof(0, "")
    notes = (*proof.notes, *filter(None, [way.checked]))
    return Choice(
        forward=forward,
        backward=backward,
        seconds=Seconds(
            forward=one.timelines[0].seconds,
            backward=one.timelines[1].seconds if asked.training else None,
            total=one.total,
            low=one.total * low,
            high=one.total * high,
        ),
        bytes_per_rank=memory.total,
        fits=asked.fits(memory.total),
        proof=Proof(proof.records, proof.nearest, (*_unseen(way), *proof.outside), proof.versions, notes),
        call=_call_text(one),
        tflops=1e-12 * asked.flops / one.total / way.layout.world_size,
        strategy=way.strategy,
        placement=way.placement,
        mesh=way.mesh,
        install=asked.install_of(forward, backward),
        unknown=memory.unknown,
    )


def known_of(way: Way, kernels: Sequence[str]) -> list[Estimate]:
    """The estimates of a way's kernels, each in its direction, by the largest step."""
    largest = max((step for step in way.steps if step is not None), key=lambda step: step.area, default=None)
    if largest is None:
        return []
    estimates = (_whole(way, largest, *each) for each in zip(kernels, way.asked.directions, strict=True))
    return [estimate for estimate in estimates if estimate is not None]


def span(known: Sequence[Estimate]) -> tuple[float, float]:
    """The ends of the interval of a strategy's time, as factors on the time, from the estimates of its kernels."""
    low = min((estimate.low / estimate.seconds for estimate in known), default=0.8)
    high = max((estimate.high / estimate.seconds for estimate in known), default=1.25)
    return low / _STRATEGY, high * _STRATEGY


def _whole(way: Way, largest: Problem, kernel: str, direction: str) -> Estimate | None:
    verdict = way.asked.resolve(kernel, of_role(largest, "forward" if direction == "forward" else "backward"))
    form = verdict.offer.form if verdict.offer else Form.ROW_INTERVALS
    call = Call(work_of(largest.concrete_mask, form), *way.pairs.heads)
    return way.asked.costs.estimate(way.asked.key(kernel, direction), call)


def _unseen(way: Way) -> Iterator[str]:
    """In words, that collectives of as many ranks were not measured."""
    measured = max((ranks for kinds in way.links.network.inside.values() for ranks in kinds), default=1)
    if way.layout.world_size > measured:
        yield f"{way.layout.world_size} devices; measured up to {measured}"


def _call_text(one: _Weighed) -> str:
    """The lines to paste."""
    way = one.way
    sizes = ", ".join(map(str, way.sizes.values()))
    names = ", ".join(f'"{axis}"' for axis in way.sizes)
    comma = "," if len(way.sizes) == 1 else ""
    kernel = join(one.kernels[0], one.kernels[-1])
    kind = way.asked.problem.device.kind
    return (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        f'mesh = init_device_mesh("{kind}", ({sizes}{comma}), mesh_dim_names=({names}{comma}))\n'
        f"longca.attention(q, k, v, mask, kernel={kernel!r}, strategy={way.strategy!r}, mesh=mesh, "
        f"placement={way.placement!r})"
    )


def _across(weighed: Sequence[_Weighed]) -> Iterator[str]:
    """Remarks on links between hosts: they were not measured, and some ways wait for them a long time."""
    if any(one.way.topology.ranks_per_host is not None for one in weighed):
        yield "times between hosts are computed from the bandwidth that was given; none was measured (unverified)"
    for one in weighed:
        topology, last = one.way.topology, one.timelines[-1]
        across = [axis for axis in topology.sizes if topology.shared(axis) < topology.sizes[axis]]
        if across and last.exposed > _MUCH * last.seconds:
            link = one.way.links.network.between
            have = "" if link is None else f" of {link.bandwidth / 1e9:.0f} GB/s"
            # Moves that now take the exposed time beside the kernels' would have to fit behind the kernels.
            factor = (last.compute + last.exposed) / max(last.compute, 1e-12)
            need = "" if link is None else f" It would wait little with {factor * link.bandwidth / 1e9:.0f} GB/s."
            hybrid = (
                "" if len(topology.sizes) > 1 else " A hybrid, such as usp with its inner axis in a host, waits less."
            )
            share = f"{last.exposed / last.seconds:.0%}"
            yield f"{_name(one.way)} waits {share} of the time for links between hosts{have}.{need}{hybrid}".rstrip(".")
