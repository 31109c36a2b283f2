"""Problems for an offer: those that resolve to it, of every head dimension and kind of mask that it takes; or why none.

What an offer cannot be asked here, for want of a device or a package, is said, not passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from longca.manifests import Device, Offer, Problem, Reason
from longca.manifests.offers import DType
from longca.manifests.problem import Direction
from longca.masks import Mask
from longca.plugins import Registry
from longca_bench.conformance.awkward_masks import awkward_masks, long_blocks, long_masks

__all__ = ["OVERTAKEN", "covered", "head_dims", "offer_problems", "problems_for"]

OVERTAKEN = "an earlier offer covers every problem here that this one would"
_NO_MASK = "no mask here has a form, blocks or intervals that this offer takes"
_FEW = 3  # masks of each further head dimension: kernels are compiled anew for each
_LONG_HEAD_DIM = 128

Labelled = tuple[str, Problem]


def offer_problems(
    registry: Registry,
    kernel: str,
    offer: Offer,
    dtype: DType,
    direction: Direction,
    device: Device,
    masks: Iterable[tuple[str, Mask]] | None = None,
) -> tuple[list[Labelled], str]:
    """Labelled problems that an offer covers, and where there are none, why.

    Args:
        registry: Where the kernel comes from.
        kernel: Its name, or a pair's.
        offer: One of its manifest's offers; of a pair, of its backward kernel's.
        dtype: Data type.
        direction: Direction.
        device: Where to run.
        masks: Labelled masks, for one head dimension; None for awkward ones of every form, a few of them for each
            further head dimension, and on CUDA devices long ones besides.
    """
    if masks is not None:
        return covered(registry, kernel, offer, problems_for(offer, dtype, direction, device, masks))
    blocks = tuple(sorted({16, 64, 128, *(offer.block_sizes or ())}))
    found: list[Labelled] = []
    refusal = ""
    for head_dim in head_dims(offer):
        asked = problems_for(offer, dtype, direction, device, awkward_masks(blocks), head_dim)
        of_dim, reason = covered(registry, kernel, offer, asked)
        refusal = refusal or reason
        found += _few(of_dim) if found else of_dim
    if device.kind == "cuda":
        head_dim = min((*head_dims(offer), *_ruled(offer, _LONG_HEAD_DIM)), key=lambda dim: abs(dim - _LONG_HEAD_DIM))
        heads = _heads(offer)[:1]
        asked = problems_for(offer, dtype, direction, device, long_masks(), head_dim, heads)
        found += covered(registry, kernel, offer, asked)[0]
        blocks = tuple(sorted({64, 128, *(offer.block_sizes or ())}))
        asked = problems_for(offer, dtype, direction, device, long_blocks(blocks), head_dim)
        found += covered(registry, kernel, offer, asked)[0]
    return found, "" if found else refusal


def covered(registry: Registry, kernel: str, offer: Offer, problems: Iterable[Labelled]) -> tuple[list[Labelled], str]:
    """Those of some labelled problems that resolve to an offer, and where there are none, why.

    An offer that is deterministic may stand behind a faster one that is not: problems reach it by asking for equal
    bits. One that composes may stand behind one that does not: problems reach it as a part of a larger softmax.

    Args:
        registry: Where the kernel comes from.
        kernel: Its name, or a pair's.
        offer: One of its manifest's offers; of a pair, of its backward kernel's.
        problems: Problems, each with its label.
    """
    *paired, manifest = registry.manifests(kernel)
    alone = (*paired, manifest.model_copy(update={"offers": (offer,)}))
    found: list[Labelled] = []
    refusals: list[Reason] = []
    overtaken = False
    for label, problem in problems:
        strict = replace(problem, deterministic=True)
        if registry.resolve(kernel, problem).is_by(offer):
            found.append((label, problem))
        elif offer.deterministic and registry.resolve(kernel, strict).is_by(offer):
            found.append((f"{label}, deterministic", strict))
        elif registry.resolve(kernel, part := replace(problem, composed=True)).is_by(offer):
            found.append((f"{label}, composed", part))
        else:
            lone = registry.resolve(alone, problem)
            overtaken |= lone.valid
            refusals.extend(lone.reasons)
    if found:
        return found, ""
    return found, OVERTAKEN if overtaken else _telling(refusals)


def _telling(refusals: Sequence[Reason]) -> str:
    """The reason that stands for all; that some of the masks are of other forms is none."""
    for codes in (("device",), ("package",)):
        for reason in refusals:
            if reason.code in codes:
                return str(reason)
    return next((str(reason) for reason in refusals if reason.code != "form"), _NO_MASK)


def problems_for(
    offer: Offer,
    dtype: DType,
    direction: Direction,
    device: Device,
    masks: Iterable[tuple[str, Mask]],
    head_dim: int | None = None,
    heads: Sequence[tuple[int, int]] = (),
) -> Iterator[Labelled]:
    """Labelled problems for an offer, some of which it may not cover.

    Args:
        offer: The offer.
        dtype: Data type.
        direction: Direction.
        device: Where to run.
        masks: Labelled masks.
        head_dim: Head dimension; None for the first of `head_dims`.
        heads: Query heads and KV heads; empty for 8:1 where the offer takes GQA, and 3:3; 4:2 for masks of 2 heads.
    """
    first = head_dims(offer)[0]
    dim = head_dim or first
    for label, mask in masks:
        for heads_q, heads_kv in heads or _heads(offer, mask.heads):
            if mask.heads not in (1, heads_q, heads_kv):
                continue
            problem = Problem(
                mask=mask,
                heads_q=heads_q,
                heads_kv=heads_kv,
                head_dim=dim,
                dtype=dtype,
                device=device,
                direction=direction,
            )
            yield f"{label}, {heads_q}:{heads_kv} heads" + (f" of {dim}" if dim != first else ""), problem


def head_dims(offer: Offer) -> tuple[int, ...]:
    """Head dimensions to examine an offer with, the one nearest to 64 first.

    All that it lists; of a rule the largest (128 where there is no bound), and one that is no power of two.
    """
    if offer.head_dims:
        return tuple(sorted(offer.head_dims, key=lambda dim: (abs(dim - 64), dim)))
    step, most = offer.head_dim_multiple, offer.max_head_dim or max(128, offer.head_dim_multiple)
    wanted = (min(64, most), most, 43)
    return tuple(dict.fromkeys(max(step, dim - dim % step) for dim in wanted if dim <= most))


def _ruled(offer: Offer, head_dim: int) -> tuple[int, ...]:
    """The head dimension, where an offer takes it by rule."""
    fits = offer.head_dims is None and head_dim <= (offer.max_head_dim or head_dim)
    return (head_dim,) if fits and head_dim % offer.head_dim_multiple == 0 else ()


def _heads(offer: Offer, mask_heads: int = 1) -> tuple[tuple[int, int], ...]:
    if mask_heads == 2:  # of KV heads that are neither one nor as many as query heads
        return ((4, 2),) if offer.gqa else ()
    return ((8, 1), (3, 3)) if offer.gqa else ((3, 3),)


def _few(problems: Sequence[Labelled]) -> list[Labelled]:
    """The first, the last and some between."""
    if len(problems) <= _FEW:
        return list(problems)
    return [problems[round(index * (len(problems) - 1) / (_FEW - 1))] for index in range(_FEW)]
