"""The problems on which an offer is examined: every head dimension and kind of mask that it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from longca.manifests import Offer, Problem
from longca.masks import Mask
from longca_bench.conformance.masks import long_blocks, long_masks, small_masks

__all__ = [
    "OUTLIERS_EACH",
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

#: A problem with its label.
Labelled = tuple[str, Problem]
#: Makes the problem of a mask, its query heads and KV heads, and a head dimension.
Make = Callable[[Mask, tuple[int, int], int], Problem]


def small_problems(offer: Offer, make: Make) -> Iterator[Iterator[Labelled]]:
    """For each head dimension, the problems of the small masks. The offer may not cover all of them."""
    blocks = tuple(sorted({16, 64, 128, *(offer.block_sizes or ())}))
    for head_dim in head_dims(offer):
        yield problems_for(offer, make, small_masks(blocks), head_dim)


def long_problems(offer: Offer, make: Make) -> Iterator[Labelled]:
    """The problems of the long masks, for CUDA devices, with a head dimension near 128."""
    fits = offer.head_dims is None and (offer.max_head_dim or _LONG_HEAD_DIM) >= _LONG_HEAD_DIM
    dims = (_LONG_HEAD_DIM,) if fits and _LONG_HEAD_DIM % offer.head_dim_multiple == 0 else head_dims(offer)
    head_dim = min(dims, key=lambda dim: abs(dim - _LONG_HEAD_DIM))
    yield from problems_for(offer, make, long_masks(), head_dim, _heads(offer)[:1])
    yield from problems_for(offer, make, long_blocks(tuple(sorted({64, 128, *(offer.block_sizes or ())}))))


def problems_for(
    offer: Offer,
    make: Make,
    masks: Iterable[tuple[str, Mask]],
    head_dim: int | None = None,
    heads: Sequence[tuple[int, int]] = (),
) -> Iterator[Labelled]:
    """Labelled problems for an offer. The offer may not cover all of them.

    The head dimension is the first of `head_dims` unless one is given. The query and KV heads are 3:3, and 8:1 if the
    offer takes GQA, unless some are given. A mask of two heads gets 4:2.
    """
    first = head_dims(offer)[0]
    dim = head_dim or first
    for label, mask in masks:
        for heads_q, heads_kv in heads or _heads(offer, mask.heads):
            if mask.heads in (1, heads_q, heads_kv):
                of_dim = f" of {dim}" if dim != first else ""
                yield f"{label}, {heads_q}:{heads_kv} heads{of_dim}", make(mask, (heads_q, heads_kv), dim)


def head_dims(offer: Offer) -> tuple[int, ...]:
    """The head dimensions on which an offer is examined. The one nearest to 64 is first.

    An offer with a list is examined on the whole list. An offer with a rule is examined on 64, on its largest head
    dimension (128 if the rule has no bound), and on one that is no power of two.
    """
    if offer.head_dims:
        equal = [dim for dim in offer.head_dims if isinstance(dim, int)]
        return tuple(sorted(equal, key=lambda dim: (abs(dim - 64), dim)))
    step, most = offer.head_dim_multiple, offer.max_head_dim or max(128, offer.head_dim_multiple)
    wanted = (min(64, most), most, 43)
    return tuple(dict.fromkeys(max(step, dim - dim % step) for dim in wanted if dim <= most))


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
