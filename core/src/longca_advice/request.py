"""Request: one question, and the sources that answer it.

A GPU without evidence is answered for by the measured GPU with the nearest compute capability. The choices of kernels
and of strategies go by the same GPU, and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from longca.manifests import Device, Direction, Layout, Offer, Problem, Transport, Verdict
from longca.manifests.step_cuts import StepStack
from longca.plugins import Registry
from longca_advice.costs import CostModel, Key
from longca_advice.devices import Capacity, evidence_name
from longca_advice.history import code_version
from longca_advice.known_plugins import lacking
from longca_advice.memory import RankMemory, rank_bytes
from longca_advice.sources import sources

__all__ = ["Request", "similar_gpus", "trusted", "with_evidence_of"]


@dataclass(frozen=True)
class Request:
    """The problem of all ranks together that was asked, in any direction, and the sources that answer it.

    Attributes:
        capacity: The memory of each rank's device, or None if unknown.
        kernels: The kernels to choose from, alone and as pairs of each other.
        anywhere: Whether a kernel stays valid when its packages are missing here.
        pairs: Further pairs to choose from, each a forward kernel and a backward kernel.
        measured: The GPU whose evidence answers the question, or None for the problem's own device.
    """

    problem: Problem
    training: bool
    registry: Registry
    costs: CostModel
    capacity: Capacity | None
    kernels: tuple[str, ...]
    anywhere: bool = True
    pairs: tuple[tuple[str, str], ...] = ()
    measured: Device | None = None

    @cached_property
    def device_name(self) -> str:
        """The device's name in the evidence."""
        return evidence_name(self.problem.device)

    @property
    def measured_elsewhere(self) -> str:
        """The GPU whose evidence answers in place of the problem's device, in words. Empty without such a GPU."""
        if self.measured is None:
            return ""
        same = self.measured.capability == self.problem.device.capability
        about = "the same" if same else "another"
        return f"measured on {evidence_name(self.measured)}, which has {about} compute capability"

    @property
    def from_similar_gpu(self) -> str:
        """A sentence on the GPU whose evidence answers in place of the problem's device. Empty without such a GPU."""
        elsewhere = self.measured_elsewhere
        return f"The times are from evidence {elsewhere}; `longca run` measures here" if elsewhere else ""

    @property
    def has_own_capability(self) -> bool:
        """Whether the evidence is of the problem's compute capability. If not, pairs are not compared."""
        return self.measured is None or self.measured.capability == self.problem.device.capability

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions whose times count."""
        return ("forward", "backward") if self.training else ("forward",)

    @property
    def flops(self) -> float:
        """Floating-point operations of all directions, on all ranks."""
        return sum(self.problem.in_direction(direction).flops for direction in self.directions)

    def key(self, kernel: str, direction: str) -> Key:
        """The cost model's key for this problem's calls of a kernel."""
        device = evidence_name(self.measured or self.problem.device)
        asked = self.problem
        dims = asked.head_dim, asked.head_dim_v
        return Key(device, kernel, direction, asked.dtype, *dims, asked.softcap is not None)

    def kernels_in(self, direction: str) -> tuple[str, ...]:
        """The kernels to choose from in a direction, alone or in a pair."""
        place = self.directions.index(direction)
        return tuple(dict.fromkeys((*self.kernels, *(pair[place] for pair in self.pairs))))

    def allows(self, kernels: Sequence[str]) -> bool:
        """Whether a kernel for each direction is one of the choices."""
        if len(set(kernels)) > 1 and not self.has_own_capability:
            return False
        return tuple(kernels) in self.pairs or set(kernels) <= set(self.kernels)

    def resolve(self, kernel: str, problem: Problem, layout: Layout | None = None) -> Verdict:
        """Whether a kernel takes a problem, or every step of a layout."""
        return self.registry.resolve(kernel, problem, layout, anywhere=self.anywhere)

    def offers(self, kernel: str, problem: Problem, stack: StepStack) -> list[Offer | None]:
        """The offer by which a kernel takes each step of a stack, or None."""
        return self.registry.offers(kernel, problem, stack, anywhere=self.anywhere)

    def unverified(self, kernel: str, layout: Layout | None = None) -> bool:
        """Whether nobody verified an offer on the device by which a kernel or a pair takes the problem or its steps."""
        if not self.problem.allow_unverified:
            return False
        problem = self.problem.in_direction(Direction.BACKWARD if self.training else Direction.FORWARD)
        return self.resolve(kernel, problem, layout).unverified

    def fits(self, size: int) -> bool | None:
        """Whether bytes fit the device, or None if its memory is unknown."""
        return None if self.capacity is None else self.capacity.fits(size)

    def lacks(self, verdicts: Mapping[str, Verdict]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The plugins and packages that kernels lack here, in words, and the line that installs them, if one does."""
        needed = {}
        for kernel, verdict in verdicts.items():
            offers = [offer for offer in (verdict.offer, *verdict.offers) if offer is not None]
            requires = (
                *self.registry.manifest(kernel).requires,
                *(text for offer in offers for text in offer.requires),
            )
            needed[kernel] = dict.fromkeys(requires)
        return lacking(self.registry, needed)

    def memory(
        self, kernels: Sequence[str], layout: Layout | None = None, transport: Transport = Transport.AUTO
    ) -> RankMemory:
        """The bytes of a call with a kernel for each direction, on the rank that needs most."""
        return rank_bytes(self.registry, self.costs.memory, self.problem, kernels, layout, transport, self.anywhere)

    def as_json(self, ranks: int, per_node: int, network: str) -> dict[str, Any]:
        """The problem as plain data. The network is in words."""
        mask, device = self.problem.concrete_mask, self.problem.device.name or str(self.problem.device)
        where = device if ranks == 1 else ", ".join(filter(None, (f"{ranks} × {device}", network)))
        direction = "training" if self.training else "forward"
        return {
            "text": self.problem.describe(direction, where),
            "mask": mask.pattern,
            "seqlen": mask.seqlen_q,
            "factors": {name: _plain(value) for name, value in mask.factors.items()},
            "density": mask.density,
            "heads_q": self.problem.heads_q,
            "heads_kv": self.problem.num_heads_kv,
            "head_dim": self.problem.head_dim,
            "head_dim_v": self.problem.dims[1],
            "dtype": self.problem.dtype,
            "softmax_scale": self.problem.scale,
            "softcap": self.problem.softcap,
            "sinks": self.problem.sinks,
            "direction": direction,
            "per_node": min(per_node, ranks),
            "network": network or None,
            "memory": None if self.capacity is None else self.capacity.total,
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def similar_gpus(device: Device) -> list[Device | None]:
    """The GPUs whose evidence may answer for a device: None for the device itself comes first. A CPU has no other."""
    return [None, *sources().costs.gpus_like(device)]


def with_evidence_of(request: Request, gpu: Device | None) -> Request:
    """The question as the evidence of one of `similar_gpus` answers it.

    Evidence of another GPU knows nothing of kernels that were found wrong here, so they are left out.
    """
    if gpu is None:
        return request
    wrong = _found_wrong(request.problem, request.registry, request.kernels)
    return replace(request, measured=gpu, kernels=tuple(name for name in request.kernels if name not in wrong))


def trusted(problem: Problem, registry: Registry, valid: list[str]) -> tuple[list[str], list[str]]:
    """The kernels whose installed version was not found wrong here, or all of them if none is left.

    A sentence about each other one follows, or a sentence about all of them.
    """
    wrong = _found_wrong(problem, registry, valid)
    if wrong and len(wrong) == len(valid):
        return valid, [
            f"LongCA found every valid kernel wrong or suspect here, and one is taken: {', '.join(sorted(wrong))}"
        ]
    said = [f"{name} is passed over: LongCA found this version of it wrong or suspect here" for name in sorted(wrong)]
    return [name for name in valid if name not in wrong], said


def _found_wrong(problem: Problem, registry: Registry, kernels: Iterable[str]) -> set[str]:
    """The kernels whose installed version was found wrong or suspect on the problem's device."""
    device, here = evidence_name(problem.device), sources().here
    providers = {name: registry.provider(name) for name in kernels} if here.wrong else {}
    versions = {name: code_version(its.distribution, its.version) for name, its in providers.items()}
    return {name for name, version in versions.items() if here.verdict_on(name, device, version)}
