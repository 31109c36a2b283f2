"""Request: one question, and the sources that answer it.

A GPU without evidence is answered for by the measured GPU with the nearest compute capability. The choices of kernels
and of strategies go by the same GPU, and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from longca.manifests import Device, Direction, Layout, Offer, Problem, Transport, Verdict, missing
from longca.manifests.step_cuts import StepStack
from longca.plugins import Registry
from longca_advice.capacity import Capacity
from longca_advice.choices import Choice, Proof, Seconds
from longca_advice.costs import CostModel, Key
from longca_advice.devices import evidence_name
from longca_advice.history import code_version
from longca_advice.memory import RankMemory, rank_bytes
from longca_advice.sources import sources

__all__ = ["Request", "similar_gpus", "trusted", "with_evidence_of"]


@dataclass(frozen=True)
class Request:
    """The problem that was asked, and the sources that answer it.

    Attributes:
        problem: The problem of all ranks together, in any direction.
        training: Whether a backward follows the forward.
        registry: Knows kernels and strategies.
        costs: Predicts the seconds of kernel calls.
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
        forward = self.problem.in_direction(Direction.FORWARD).flops
        return forward * 3.5 if self.training else forward

    def key(self, kernel: str, direction: str) -> Key:
        """The cost model's key for this problem's calls of a kernel."""
        device = evidence_name(self.measured or self.problem.device)
        return Key(device, kernel, direction, self.problem.dtype, self.problem.head_dim)

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
        """Whether nobody verified an offer on the device by which a kernel or a pair takes the problem.

        Args:
            kernel: The kernel or the pair.
            layout: Under context parallelism, the queries, keys and heads of every step.
        """
        if not self.problem.allow_unverified:
            return False
        problem = self.problem.in_direction(Direction.BACKWARD if self.training else Direction.FORWARD)
        return self.resolve(kernel, problem, layout).unverified

    def fits(self, size: int) -> bool | None:
        """Whether bytes fit the device, or None if its memory is unknown."""
        return None if self.capacity is None else self.capacity.fits(size)

    def install(self, kernel: str, verdict: Verdict) -> tuple[str, ...]:
        """The commands that install the packages that a kernel needs and that are missing here."""
        manifest = self.registry.manifest(kernel)
        offers = [offer for offer in (verdict.offer, *verdict.offers) if offer is not None]
        needed = dict.fromkeys([*manifest.requires, *(text for offer in offers for text in offer.requires)])
        lacking = [text for text in needed if missing(text)]
        return tuple(dict.fromkeys(manifest.install or f"pip install '{text}'" for text in lacking))

    def memory(
        self,
        kernels: Sequence[str],
        strategy: str | None = None,
        sizes: Mapping[str, int] | None = None,
        layout: Layout | None = None,
        transport: Transport = Transport.AUTO,
    ) -> RankMemory:
        """The bytes of a call on the rank that needs most.

        Args:
            kernels: The kernel of each direction.
            strategy: The strategy, or None on one device. Its axes' sizes, its layout and its transport follow.
        """
        nccl = self.problem.device.kind == "cuda"
        about = (strategy, sizes, layout, self.training, nccl, self.anywhere, transport)
        return rank_bytes(self.registry, self.costs.memory, self.problem, kernels[0], kernels[-1], *about)

    def choice(
        self,
        kernels: Sequence[str],
        seconds: Sequence[float],
        interval: tuple[float, float],
        memory: RankMemory,
        ranks: int = 1,
        intervals: tuple[tuple[float, float], ...] = (),
        *,
        ranked: float,
        proof: Proof,
        call: str,
        unverified: bool = False,
        **shared: str,
    ) -> Choice:
        """A way to compute the problem.

        Args:
            kernels: The kernel of each direction.
            seconds: The predicted time of each direction.
            interval: The ends of the interval of their sum.
            memory: The memory of a call.
            ranks: Ranks that share the problem.
            intervals: The interval of each direction, if known.
            ranked: Seconds to rank it by.
            proof: The evidence behind the prediction.
            call: The line to paste.
            unverified: Whether nobody verified one of the kernels on the device.
            **shared: The strategy, its placement and its mesh, if ranks share the problem.
        """
        total, backward = sum(seconds), seconds[1] if self.training else None
        installs = (self.install(name, Verdict(name)) for name in dict.fromkeys(kernels))
        return Choice(
            forward=kernels[0],
            backward=kernels[1] if self.training else None,
            seconds=Seconds(seconds[0], backward, total, *interval, intervals, ranked),
            bytes_per_rank=memory.total,
            fits=self.fits(memory.total),
            proof=proof,
            call=call.removesuffix(")") + ", allow_unverified=True)" if unverified else call,
            tflops=1e-12 * self.flops / total / ranks,
            install=tuple(dict.fromkeys(command for commands in installs for command in commands)),
            unknown=memory.unknown,
            unverified=unverified,
            **shared,
        )

    def as_json(self, ranks: int, per_node: int) -> dict[str, Any]:
        """The problem as plain data."""
        mask = self.problem.concrete_mask
        return {
            "mask": mask.pattern,
            "seqlen": mask.seqlen_q,
            "factors": {name: _plain(value) for name, value in mask.factors.items()},
            "density": mask.density,
            "heads_q": self.problem.heads_q,
            "heads_kv": self.problem.num_heads_kv,
            "head_dim": self.problem.head_dim,
            "dtype": self.problem.dtype,
            "direction": "training" if self.training else "forward",
            "per_node": min(per_node, ranks),
            "memory": None if self.capacity is None else self.capacity.total,
        }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def similar_gpus(device: Device) -> list[Device | None]:
    """The GPUs whose evidence may answer for a device: None for the device itself comes first.

    Args:
        device: The device. A CPU has no other.
    """
    return [None, *sources().costs.gpus_like(device)]


def with_evidence_of(request: Request, gpu: Device | None) -> Request:
    """The question as the evidence of a GPU answers it.

    Evidence of another GPU knows nothing of kernels that were found wrong here, so they are left out.

    Args:
        request: The question.
        gpu: One of `similar_gpus`.
    """
    if gpu is None:
        return request
    wrong = _found_wrong(request.problem, request.registry, request.kernels)
    return replace(request, measured=gpu, kernels=tuple(name for name in request.kernels if name not in wrong))


def trusted(problem: Problem, registry: Registry, valid: list[str]) -> tuple[list[str], list[str]]:
    """The kernels whose installed version was not found wrong here, or all of them if none is left.

    Args:
        problem: The problem, with its device.
        registry: The registry of the kernels.
        valid: The valid kernels.

    Returns:
        The kernels, and a sentence about each other one, or about all of them.
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
