"""Verifying offers: for every row of a manifest, small problems that resolve to it, and what became of them.

Lengths are uneven, documents as short as one token, heads 8:1 and 1:1, queries that see nothing, and Sq ≠ Sk where
the offer takes it. What an offer cannot be asked here, for want of a device or a package, is said, not passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import torch

from longca.bench.inputs import Inputs, draw_inputs
from longca.bench.reference import part_reference, reference
from longca.bench.verify import Finding, Verification, check_backward, check_counts, check_forward
from longca.kernels.base import Kernel, torch_device
from longca.manifests import Device, Offer, Problem, Reason
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask, Slice, SliceMask, build
from longca.plugins import Registry

__all__ = ["OfferCheck", "covered", "problems_for", "verify_kernel", "verify_problem"]

SEQLEN = 203  # prime, and more than one tile of 128
_DOCUMENTS = (1, 64, 1, 1, 77, 59)


@dataclass
class OfferCheck:
    """One offer in one direction and dtype.

    Attributes:
        kernel: The kernel's name.
        offer: The offer.
        direction: `forward` or `backward`.
        dtype: Data type.
        masks: What it was verified on.
        worst: The finding nearest to its limit, or furthest beyond it, and the mask it was found on.
        failures: Every finding beyond its limit, with its mask.
        skipped: Why it was not verified here; empty where it was.
        error: What the kernel raised; empty where nothing.
    """

    kernel: str
    offer: Offer
    direction: Direction
    dtype: DType
    masks: list[str] = field(default_factory=list)
    worst: tuple[str, Finding] | None = None
    failures: list[tuple[str, Finding]] = field(default_factory=list)
    skipped: str = ""
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether it was verified, and right."""
        return bool(self.masks) and not self.failures and not self.error

    def take(self, label: str, verification: Verification) -> None:
        """Adds what was found on one mask."""
        self.masks.append(label)
        for finding in verification.findings:
            if self.worst is None or finding.closeness > self.worst[1].closeness:
                self.worst = label, finding
            if not finding.passed:
                self.failures.append((label, finding))


def verify_kernel(registry: Registry, kernel: str, device: Device) -> Iterator[OfferCheck]:
    """Verifies every offer of a kernel on a device, in every direction and dtype it has.

    Args:
        registry: Where the kernel comes from.
        kernel: Its name.
        device: Where to run it.
    """
    for offer in registry.manifest(kernel).offers:
        for dtype in offer.dtypes:
            for direction in offer.directions:
                yield _verify(registry, kernel, offer, dtype, direction, device)


def covered(
    registry: Registry, kernel: str, offer: Offer, problems: Iterable[tuple[str, Problem]]
) -> tuple[list[tuple[str, Problem]], str]:
    """Those of some labelled problems that resolve to an offer, and where there are none, why.

    Args:
        registry: Where the kernel comes from.
        kernel: Its name.
        offer: One of its manifest's offers.
        problems: Problems, each with its label.
    """
    alone = registry.manifest(kernel).model_copy(update={"offers": (offer,)})
    found: list[tuple[str, Problem]] = []
    refusals: list[Reason] = []
    overtaken = False
    for label, problem in problems:
        if registry.resolve(kernel, problem).offer is offer:
            found.append((label, problem))
            continue
        lone = registry.resolve(alone, problem)
        overtaken |= lone.valid
        refusals.extend(lone.reasons)
    if found:
        return found, ""
    # That some of the masks are of other forms is no reason; a device or a package is.
    telling = [str(reason) for reason in refusals if reason.code != "form"]
    earlier = "an earlier offer covers every problem here that this one would"
    return found, telling[0] if telling and not overtaken else earlier


def _verify(
    registry: Registry, kernel: str, offer: Offer, dtype: DType, direction: Direction, device: Device
) -> OfferCheck:
    check = OfferCheck(kernel, offer, direction, dtype)
    problems, check.skipped = covered(registry, kernel, offer, problems_for(offer, dtype, direction, device))
    for label, problem in problems:
        try:
            check.take(label, verify_problem(registry.load(kernel), offer, problem))
        except Exception as error:  # whatever a kernel raises is a finding about that kernel
            check.error = f"{label}: {type(error).__name__}: {error}"
            break
    return check


def verify_problem(kernel: Kernel, offer: Offer, problem: Problem) -> Verification:
    """Verifies a kernel on one problem that an offer of its manifest covers.

    Raises:
        ValueError: The plan's form is not the offer's.
    """
    inputs = draw_inputs(problem, seed=0)
    expected = reference(problem, inputs)
    plan = kernel.plan(problem)
    if plan.form is not offer.form:
        raise ValueError(f"the plan's form is {plan.form}, but the offer that covers the problem is {offer.form}")
    found, out, lse = check_forward(kernel, plan, inputs, expected)
    if problem.direction == "forward":
        return found + check_counts(kernel, plan, inputs)
    found += check_backward(kernel, plan, inputs, out, lse, expected)
    if offer.backward.composes:
        found += _run_as_part(kernel, problem, inputs)
    return found


def _run_as_part(kernel: Kernel, problem: Problem, inputs: Inputs) -> Verification:
    """The backward as one part of a softmax that runs over further keys, whose output and lse are made up."""
    q, device = inputs.q, torch_device(problem.device)
    generator = torch.Generator().manual_seed(1)
    other_out = torch.randn(q.shape, generator=generator, dtype=torch.float64).to(device)
    other_lse = torch.randn((q.shape[1], q.shape[0]), generator=generator, dtype=torch.float64).to(device) + 3.0
    expected = part_reference(problem, inputs, (other_out, other_lse))
    assert expected.merged is not None
    out, lse = expected.merged
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    found = check_backward(kernel, kernel.plan(problem), inputs, out.to(q.dtype), lse.to(wide), expected)
    return Verification(tuple(finding.named(f"{finding.tensor} as a part") for finding in found.findings))


def problems_for(
    offer: Offer,
    dtype: DType,
    direction: Direction,
    device: Device,
    masks: Iterable[tuple[str, Mask]] | None = None,
) -> Iterator[tuple[str, Problem]]:
    """Labelled problems for an offer, some of which it may not cover: 8:1 heads where it takes GQA, and 3:3.

    Args:
        offer: The offer.
        dtype: Data type.
        direction: Direction.
        device: Where to run.
        masks: Labelled masks; None for the awkward ones of every form.
    """
    head_dim = _head_dim(offer)
    for label, mask in _masks() if masks is None else masks:
        for heads_q, heads_kv in ((8, 1), (3, 3)) if offer.gqa else ((3, 3),):
            if mask.heads not in (1, heads_q, heads_kv):
                continue
            problem = Problem(
                mask=mask,
                heads_q=heads_q,
                heads_kv=heads_kv,
                head_dim=head_dim,
                dtype=dtype,
                device=device,
                direction=direction,
            )
            yield f"{label}, {heads_q}:{heads_kv} heads", problem


def _head_dim(offer: Offer) -> int:
    """A head dimension the offer takes, 64 where it can."""
    if offer.head_dims:
        return min(offer.head_dims, key=lambda dim: abs(dim - 64))
    most = min(64, offer.max_head_dim or 64)
    return max(offer.head_dim_multiple, most - most % offer.head_dim_multiple)


@cache
def _masks() -> tuple[tuple[str, Mask], ...]:
    """Small masks of every form, the awkward ones among them."""
    s, documents = SEQLEN, _DOCUMENTS
    named: list[tuple[str, Mask]] = [
        ("full", build("full", s)),
        ("full 77 × 203", build("full", 77, seqlen_k=s)),
        ("causal", build("causal", s)),
        ("causal 77 × 203", build("causal", 77, seqlen_k=s)),
        ("causal 203 × 77 (empty rows)", build("causal", s, seqlen_k=77)),
        ("full_sliding_window", build("full_sliding_window", s, window=40)),
        ("causal_sliding_window", build("causal_sliding_window", s, window=40)),
        ("full_document", build("full_document", s, documents=documents)),
        ("causal_document", build("causal_document", s, documents=documents)),
        ("block_causal_document", build("block_causal_document", s, documents=documents, block=16)),
        ("prefix_lm_causal", build("prefix_lm_causal", s, prefix=70)),
        ("prefix_lm_document", build("prefix_lm_document", s, documents=documents, prefix=20)),
        ("shared_question", build("shared_question", s, documents=documents[1:] + documents[:1])),
        ("global_sliding_window", build("global_sliding_window", s, window=30, global_tokens=9)),
        ("causal_blockwise", build("causal_blockwise", s, documents=documents)),
        ("rows that see nothing", SliceMask([Slice(0, 60, 0, 90), Slice(120, s, 50, s, hi=0)], s, s)),
        ("one token", build("full", 1)),
    ]
    for heads in (1, 3, 8):
        for block in (16, 64, 128):
            mask = build("uniform_block_sparse", s, block=block, kept=0.4, heads=heads, seed=heads)
            named.append((f"blocks of {block}, {heads} masks", mask))
        bounds = (0, 3, 64, 65, 130, s)
        mask = build("variable_block_sparse", s, boundaries=bounds, kept=0.4, heads=heads, seed=heads)
        named.append((f"variable blocks, {heads} masks", mask))
    return tuple(named)
