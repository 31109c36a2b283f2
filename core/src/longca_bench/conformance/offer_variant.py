"""The variant of a check: one offer of a kernel in one dtype and direction, and the problems that reach it.

`longca verify` and the conformance suite both start here: `offer_variants` lists those of a kernel, and
`OfferVariant.problems` lists the problems of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from longca.errors import LongCAError
from longca.kernels.base import Kernel
from longca.manifests import Device, Offer, Problem, Reason
from longca.manifests.offers import DType
from longca.manifests.pairs import join, split
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca.plugins import Registry
from longca_bench.conformance.isolation import Isolation
from longca_bench.conformance.problems import SOFTCAP, Labelled, few, long_problems, problems_for, small_problems

__all__ = ["OVERTAKEN", "PARTNER", "NotApplicableError", "OfferVariant", "offer_variants"]

#: Codes of reasons that hold for every mask, the most telling one first.
_OF_ALL = ("device", "unverified", "package")
OVERTAKEN = "an earlier offer covers every problem here that this one would"
_NO_MASK = "no mask here has a form, blocks or intervals that this offer takes"
PARTNER = "naive"  # the other half of a pair


class NotApplicableError(LongCAError):
    """A check does not apply to a variant, or cannot be made on this machine. The message has the reason."""


@dataclass(frozen=True)
class OfferVariant:
    """One offer of a kernel in one dtype and direction.

    Attributes:
        registry: The kernel's registry.
        name: The name of the kernel, or of the pair.
        offer: The offer. For a pair it is an offer of the backward kernel.
        dtype: Data type.
        direction: `forward`, or `backward` for both.
        device: The device.
        isolation: Where the kernel runs.
        allow_unverified: Whether its problems may be computed by an offer that nobody verified on the device.
    """

    registry: Registry
    name: str
    offer: Offer
    dtype: DType
    direction: Direction
    device: Device
    isolation: Isolation = field(default_factory=Isolation)
    allow_unverified: bool = False

    @property
    def kernel(self) -> Kernel:
        """The kernel, whose time begins now (see `longca_bench.conformance.isolation.Isolation`)."""
        return self.isolation.kernel(self.registry, self.name, self.device)

    def problems(self, masks: Iterable[tuple[str, Mask]] | None = None) -> list[Labelled]:
        """Labelled problems that the offer covers, of some labelled masks for one head dimension.

        Without masks they are the problems of `longca verify`: small masks of every form, a few of them for each
        further head dimension, a few with a soft cap if the offer has one, and long masks on CUDA devices.

        Raises:
            NotApplicableError: The offer covers none of the problems on this device.
        """
        found, refusal = self._own if masks is None else self.covered(problems_for(self.offer, self._make, masks))
        if not found:
            raise NotApplicableError(refusal)
        return found

    @cached_property
    def _own(self) -> tuple[list[Labelled], str]:
        """The problems of `longca verify`. If there are none, also the reason."""
        found: list[Labelled] = []
        refusal = ""
        for asked in small_problems(self.offer, self._make):
            of_dim, reason = self.covered(asked)
            refusal = refusal or reason
            found += few(of_dim) if found else of_dim
        if self.offer.softcap:
            found += self.covered(_capped(label, problem) for label, problem in few(found))[0]
        if self.device.kind == "cuda":
            found += self.covered(long_problems(self.offer, self._make))[0]
        return found, refusal

    def _make(self, mask: Mask, heads: tuple[int, int], head_dims: tuple[int, int]) -> Problem:
        return Problem(
            mask=mask,
            heads_q=heads[0],
            heads_kv=heads[1],
            head_dim=head_dims[0],
            head_dim_v=head_dims[1],
            dtype=self.dtype,
            device=self.device,
            direction=self.direction,
            allow_unverified=self.allow_unverified,
        )

    def covered(self, problems: Iterable[Labelled]) -> tuple[list[Labelled], str]:
        """The problems that resolve to the offer. If there are none, also the reason."""
        *paired, manifest = self.registry.manifests(self.name)
        alone = (*paired, manifest.model_copy(update={"offers": (self.offer,)}))
        found: list[Labelled] = []
        refusals: list[Reason] = []
        overtaken = False
        for label, problem in problems:
            lone = self.registry.resolve(alone, problem)
            if lone.valid and (reached := self._reached(label, problem)) is not None:
                found.append(reached)
                continue
            overtaken |= lone.valid
            refusals.extend(lone.reasons)
            if any(reason.code in _OF_ALL for reason in lone.reasons):
                break  # it holds for every other problem too
        if found:
            return found, ""
        return found, OVERTAKEN if overtaken else _telling(refusals)

    def _reached(self, label: str, problem: Problem) -> Labelled | None:
        """The problem as it resolves to the offer, which may stand behind another one. None if it does not.

        A deterministic offer behind a faster one that is not is reached by asking for equal bits. An offer that
        composes, behind one that does not, is reached by a part of a larger softmax, and one with a soft cap by a cap.
        """
        ways = [
            (label, problem),
            (f"{label}, deterministic", replace(problem, deterministic=True)),
            (f"{label}, composed", replace(problem, composed=True)),
            _capped(label, problem),
        ]
        return next((way for way in ways if self.registry.resolve(self.name, way[1]).is_by(self.offer)), None)


def offer_variants(
    registry: Registry,
    kernel: str,
    device: Device,
    isolation: Isolation = Isolation(),
    *,
    allow_unverified: bool = False,
) -> Iterator[OfferVariant]:
    """The variants of a kernel's offers: every offer in every dtype and direction that it has.

    A pair has the offers of its backward kernel, which gets out and lse of the forward kernel. An offer without a
    forward is paired with `naive`.
    """
    *paired, manifest = registry.manifests(kernel)
    for offer in manifest.offers:
        name = kernel if offer.forward or split(kernel) else join(PARTNER, kernel)
        for dtype in offer.dtypes:
            for direction in (Direction.BACKWARD,) if paired else offer.directions:
                yield OfferVariant(registry, name, offer, dtype, direction, device, isolation, allow_unverified)


def _capped(label: str, problem: Problem) -> Labelled:
    return (label, problem) if problem.softcap else (f"{label}, soft cap", replace(problem, softcap=SOFTCAP))


def _telling(refusals: Sequence[Reason]) -> str:
    """The reason that stands for all. A mask of another form is no reason."""
    for code in _OF_ALL:
        for reason in refusals:
            if reason.code == code:
                return str(reason)
    return next((str(reason) for reason in refusals if reason.code != "form"), _NO_MASK)
