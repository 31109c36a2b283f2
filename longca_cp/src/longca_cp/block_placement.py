"""Block placement: whole blocks of a block-sparse mask on parts of the ranks, so that every cut keeps its blocks.

A part holds the query and the key of a token, and query blocks and key blocks may differ in size. So tokens are dealt
in *units*: the stretches between two positions that are bounds of query blocks and of key blocks. Units ascend within a
part. A short last block therefore stays the last one, as kernels expect.

Parts hold equally many tokens as far as units allow: no part has more than its equal share and the largest unit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca.manifests.strategy import Ranges
from longca.masks import BlockSparseMask, Mask
from longca.masks.bitmaps import unpacked
from longca_cp.ranges import union

__all__ = ["key_blocks_seen", "most_tokens", "place_blocks", "unit_bounds"]

_Ints = NDArray[np.int64]


def unit_bounds(mask: BlockSparseMask) -> _Ints:
    """The positions at which both a query block and a key block begin or end, ascending: [units + 1]."""
    return np.intersect1d(mask.q_bounds, mask.k_bounds)


def place_blocks(kind: str, mask: BlockSparseMask, parts: int) -> tuple[Ranges, ...]:
    """The tokens of each part, in whole units.

    Args:
        kind: A placement's name.
        mask: The mask of all tokens, with as many queries as keys.
        parts: Number of parts.

    Returns:
        (start, stop) of each part's tokens, ascending and disjoint: [parts][ranges]. Every token is in one part.

    Raises:
        UnsupportedError: There are fewer units than parts, or the placement needs documents.
    """
    if kind not in _DEALS:
        allowed = ", ".join(_DEALS)
        raise UnsupportedError(f"this {mask.label} has no documents to place tokens within. Place them by {allowed}.")
    bounds = unit_bounds(mask)
    if parts == 1:
        return (union(bounds[:1], bounds[-1:]),)
    if len(bounds) - 1 < parts:
        raise UnsupportedError(
            f"this {mask.label} was to be cut for {parts} ranks of a ring, and its blocks of queries and of keys share "
            f"bounds that make {len(bounds) - 1} pieces. Put at most {max(1, len(bounds) - 1)} ranks on the ring, "
            "choose smaller blocks, or use ulysses, which splits heads."
        )
    return tuple(union(bounds[:-1][units], bounds[1:][units]) for units in _DEALS[kind](mask, bounds, parts))


def most_tokens(mask: Mask, parts: int, ranks: int) -> int:
    """The most tokens that a rank holds under any placement. A part has up to one unit more than its share.

    Args:
        mask: The mask of all tokens.
        parts: Number of parts.
        ranks: Number of ranks, a multiple of the parts. The ranks of a part split its tokens evenly.
    """
    if parts == 1 or not isinstance(mask, BlockSparseMask):
        return -(-mask.seqlen_q // ranks)
    part = min(mask.seqlen_q, mask.seqlen_q // parts + int(np.diff(unit_bounds(mask)).max(initial=0)))
    return -(-part // (ranks // parts))


def key_blocks_seen(mask: BlockSparseMask, part: Ranges) -> Ranges:
    """The keys of the blocks that some query of a part keeps, in any head."""
    first = [int(np.searchsorted(mask.q_bounds, start, side="right")) - 1 for start, _ in part]
    stop = [int(np.searchsorted(mask.q_bounds, stop)) for _, stop in part]
    rows = np.concatenate([np.arange(0), *map(np.arange, first, stop)])
    bits = np.bitwise_or.reduce(mask.bits[:, rows].reshape(-1, mask.bits.shape[2]), axis=0)
    seen = unpacked(bits, len(mask.k_bounds) - 1)
    return union(mask.k_bounds[:-1][seen], mask.k_bounds[1:][seen])


def _contiguous(_mask: BlockSparseMask, bounds: _Ints, parts: int) -> list[_Ints]:
    """One stretch of units for each part, which has at least one."""
    part, units = np.arange(1, parts), len(bounds) - 1
    ends = np.clip(_nearest(bounds, part * bounds[-1] / parts), part, units - parts + part)
    ends = np.r_[0, np.maximum.accumulate(ends - part) + part, units]
    return [np.arange(*pair) for pair in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _zigzag(_mask: BlockSparseMask, bounds: _Ints, parts: int) -> list[_Ints]:
    """Two stretches of units for each part, from both ends inwards, together as near to an equal share as they get."""
    share = np.arange(1, parts + 1) * bounds[-1] / parts
    front = _nearest(bounds, share / 2)
    back = _nearest(bounds, bounds[-1] - (share - bounds[front]))
    back = np.minimum.accumulate(np.maximum(back, front[-1]))
    starts, stops = np.r_[0, front[:-1]].tolist(), np.r_[len(bounds) - 1, back[:-1]].tolist()
    stretches = zip(starts, front.tolist(), back.tolist(), stops, strict=True)
    return [np.r_[start:early, late:stop] for start, early, late, stop in stretches]


def _balanced(mask: BlockSparseMask, bounds: _Ints, parts: int) -> list[_Ints]:
    """Units dealt by their visible pairs, the largest first, each to the part with least so far that has room.

    A part has room while it holds less than its share of the dealt tokens. Units of one size are therefore dealt in
    rounds, and numbers of tokens stay as even as the units.
    """
    rows = mask.keys_by_block.sum(axis=0) * np.diff(mask.q_bounds)
    area = np.add.reduceat(rows, np.searchsorted(mask.q_bounds, bounds[:-1]))
    size = np.diff(bounds)
    owner, pairs, tokens = np.empty(len(area), np.int64), np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    dealt = 0
    for unit in np.argsort(-area, kind="stable").tolist():
        dealt += int(size[unit])
        room = np.flatnonzero(tokens * parts < dealt)
        part = room[pairs[room].argmin()]
        owner[unit] = part
        pairs[part] += area[unit]
        tokens[part] += size[unit]
    return [np.flatnonzero(owner == part) for part in range(parts)]


_DEALS: dict[str, Callable[[BlockSparseMask, _Ints, int], list[_Ints]]] = {
    "contiguous": _contiguous,
    "zigzag": _zigzag,
    "balanced": _balanced,
}


def _nearest(bounds: _Ints, targets: NDArray[np.float64]) -> _Ints:
    """The index of the bound nearest to each target, the lower one of two equally near."""
    above = np.clip(np.searchsorted(bounds, targets), 1, len(bounds) - 1)
    nearer: _Ints = np.where(targets - bounds[above - 1] <= bounds[above] - targets, above - 1, above)
    return nearer
