"""Weighed ways: a strategy's layout with its fastest kernels, and the choice that it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longca.manifests import Problem
from longca.manifests.pairs import join
from longca.masks import Form
from longca_advice.choices import Choice, Proof, Seconds
from longca_advice.costs import Estimate
from longca_advice.fit import Call
from longca_advice.kernels import proof_of
from longca_advice.memory import rank_bytes
from longca_advice.timeline import Timeline
from longca_advice.ways import Way, of_role
from longca_advice.work import work_of

__all__ = ["Weighed", "across", "choice_of", "known_of", "name_of", "span"]

#: The factor by which predictions of strategies are wider than predictions of their kernels, on either side.
_STRATEGY = 1.06

#: Share of the time spent waiting for other hosts, from which on a ring is advised against.
_MUCH = 0.25


@dataclass(frozen=True)
class Weighed:
    """A way with its fastest kernels, and the breakdown of each direction's time.

    Attributes:
        way: The strategy, its mesh and its placement.
        kernels: The kernel of each direction.
        timelines: The breakdown of each direction's time.
    """

    way: Way
    kernels: tuple[str, ...]
    timelines: tuple[Timeline, ...]

    @property
    def total(self) -> float:
        """Seconds of all directions."""
        return sum(timeline.seconds for timeline in self.timelines)


def name_of(way: Way) -> str:
    """The name of a way in messages."""
    return f"{way.strategy} ({way.mesh}, {way.placement})"


def choice_of(one: Weighed) -> Choice:
    """A weighed way as a choice, with its memory and the code to paste."""
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


def _call_text(one: Weighed) -> str:
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


def across(weighed: Sequence[Weighed]) -> Iterator[str]:
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
            yield f"{name_of(one.way)} waits {share} of the time for links between hosts{have}.{need}{hybrid}".rstrip(
                "."
            )
