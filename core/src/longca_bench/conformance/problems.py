"""The problems on which an offer is examined: every head dimension and kind of mask that it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from longca.manifests import Offer, Problem
from longca.masks import Mask
from longca_bench.conformance.masks import long_blocks, long_masks, small_masks

__all__ = [
    "OUTLIERS_EACH",
    "SOFTCAP",
    "Labelled",
    "few",
    "head_dims",
    "long_problems",
    "problems_for",
    "small_problems",
    "smallest_first",
]

_FEW = 3  # masks for each further head dimension, because a kernel is compiled anew for each
_LONG_HEAD_DIM = 128
#: One problem of so many is also verified on inputs with outliers.
OUTLIERS_EACH = 8
#: A soft cap that bends scores by 8 % at 1 and by half at 4.
SOFTCAP = 2.0

#: A problem with its label.
Labelled = tuple[str, Problem]
#: Head dimensions of q and k, and of v.
Dims = tuple[int, int]
#: Makes the problem of a mask, its query heads and KV heads, and head dimensions.
Make = Callable[[Mask, tuple[int, int], Dims], Problem]


def small_problems(offer: Offer, make: Make) -> Iterator[Iterator[Labelled]]:
    """For each head dimension, the problems of the small masks. The offer may not cover all of them."""
    blocks = tuple(sorted({16, 64, 128, *(offer.block_sizes or ())}))
    for dims in head_dims(offer):
        yield problems_for(offer, make, small_masks(blocks), dims)


def long_problems(offer: Offer, make: Make) -> Iterator[Labelled]:
    """The problems of the long masks, for CUDA devices, with a head dimension near 128."""
    fits = offer.head_dims is None and (offer.max_head_dim or _LONG_HEAD_DIM) >= _LONG_HEAD_DIM
    fits = fits and _LONG_HEAD_DIM % offer.head_dim_multiple == 0
    known = ((_LONG_HEAD_DIM, _LONG_HEAD_DIM),) if fits else head_dims(offer)
    dims = min(known, key=lambda each: sum(abs(dim - _LONG_HEAD_DIM) for dim in each))
    yield from problems_for(offer, make, long_masks(), dims, _heads(offer)[:1])
    yield from problems_for(offer, make, long_blocks(tuple(sorted({64, 128, *(offer.block_sizes or ())}))))


def problems_for(
    offer: Offer,
    make: Make,
    masks: Iterable[tuple[str, Mask]],
    dims: Dims | None = None,
    heads: Sequence[tuple[int, int]] = (),
) -> Iterator[Labelled]:
    """Labelled problems for an offer. The offer may not cover all of them.

    The head dimensions are the first of `head_dims` unless some are given. The query and KV heads are 3:3, and 8:1 if
    the offer takes GQA, unless some are given. A mask of two heads gets 4:2.
    """
    first = head_dims(offer)[0]
    dims = dims or first
    for label, mask in masks:
        for heads_q, heads_kv in heads or _heads(offer, mask.heads):
            if mask.heads in (1, heads_q, heads_kv):
                problem = make(mask, (heads_q, heads_kv), dims)
                of_dim = f" of {problem.dims_text}" if dims != first else ""
                yield f"{label}, {heads_q}:{heads_kv} heads{of_dim}", problem


def head_dims(offer: Offer) -> tuple[Dims, ...]:
    """The head dimensions of q and k with those of v on which an offer is examined. Those nearest to 64 are first.

    An offer with a list is examined on the whole list. An offer with a rule is examined on 64, on its largest head
    dimension (128 if the rule has no bound), and on one that is no power of two. An offer that takes unequal ones is
    examined on the largest with the smallest of these too, both ways round.
    """
    if offer.head_dims:
        single = sorted((d for d in offer.head_dims if isinstance(d, int)), key=lambda dim: (abs(dim - 64), dim))
    else:
        step, most = offer.head_dim_multiple, offer.max_head_dim or max(128, offer.head_dim_multiple)
        single = [max(step, dim - dim % step) for dim in (min(64, most), most, 43) if dim <= most]
    both = [(max(single), min(single)), (min(single), max(single))] if single and offer.unequal_head_dims else []
    pairs = [dims for dims in offer.head_dims or () if isinstance(dims, tuple)]
    return tuple(dict.fromkeys([*((dim, dim) for dim in single), *both, *pairs]))


def few(problems: Sequence[Labelled]) -> list[Labelled]:
    """The first problem, the last, and one between them."""
    if len(problems) <= _FEW:
        return list(problems)
    return [problems[round(index * (len(problems) - 1) / (_FEW - 1))] for index in range(_FEW)]


def smallest_first(problems: Iterable[Labelled]) -> list[Labelled]:
    """Problems by their numbers of scores, so that the smallest one that fails comes first."""
    return sorted(problems, key=lambda each: each[1].concrete_mask.seqlen_q * each[1].concrete_mask.seqlen_k)


def _heads(offer: Offer, mask_heads: int = 1) -> tuple[tuple[int, int], ...]:
    if mask_heads == 2:  # more than one KV head, and fewer than query heads
        return ((4, 2),) if offer.gqa else ()
    return ((8, 1), (3, 3)) if offer.gqa else ((3, 3),)
