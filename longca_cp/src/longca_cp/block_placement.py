"""Block placement: whole blocks of block-sparse masks on parts of the ranks, so that every cut keeps its blocks.

A part holds the query and the key of a token, and query blocks and key blocks may differ in size. So tokens are dealt
in *units*: the stretches between two positions that are bounds of query blocks and of key blocks. Units ascend within a
part. A short last block therefore stays the last one, as kernels expect.

Masks that share a placement have units in common: the stretches between bounds of all block-sparse masks among them. A
dense mask has no bounds, and is cut between any tokens.

Parts hold equally many tokens as far as units allow: no part has more than its equal share and the largest unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import lcm

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca.manifests.strategy import Ranges
from longca.masks import BlockSparseMask, Mask
from longca.masks.bitmaps import unpacked
from longca_cp.balanced import CHUNK, MIN_CHUNKS
from longca_cp.ranges import union
from longca_cp.rows import areas

__all__ = ["key_blocks_seen", "most_tokens", "place_blocks", "unit_bounds"]

_Ints = NDArray[np.int64]
_Weighed = Sequence[tuple[Mask, float]]


def unit_bounds(*masks: BlockSparseMask) -> _Ints:
    """The positions at which query blocks and key blocks of all masks begin or end, ascending: [units + 1]."""
    return reduce(np.intersect1d, [bounds for mask in masks for bounds in (mask.q_bounds, mask.k_bounds)])


def place_blocks(kind: str, weighed: _Weighed, parts: int) -> tuple[Ranges, ...]:
    """The tokens of each part, in whole units. At least one mask is block-sparse.

    Raises:
        UnsupportedError: There are fewer units than parts, or the placement needs documents.
    """
    blocks = [mask for mask, _ in weighed if isinstance(mask, BlockSparseMask)]
    if kind not in _DEALS:
        allowed = ", ".join(_DEALS)
        label = blocks[0].label
        raise UnsupportedError(f"this {label} has no documents to place tokens within. Place them by {allowed}.")
    bounds = unit_bounds(*blocks)
    if parts == 1:
        return (union(bounds[:1], bounds[-1:]),)
    if (units := len(bounds) - 1) < parts:
        raise UnsupportedError(_too_few(blocks, units, parts))
    if kind == "balanced" and len(blocks) < len(weighed):
        bounds = _joined(bounds, parts)
    dealt = _DEALS[kind](weighed, bounds, parts)
    return tuple(union(bounds[:-1][units], bounds[1:][units]) for units in dealt)


def _too_few(blocks: Sequence[BlockSparseMask], units: int, parts: int) -> str:
    """The sentences on masks that have fewer units in common than there are parts."""
    ask = f"Put at most {max(1, units)} ranks on the ring, choose smaller blocks"
    pieces = f"bounds that make {units} piece{'' if units == 1 else 's'}"
    if len(blocks) == 1:
        return (
            f"this {blocks[0].label} was to be cut for {parts} ranks of a ring, and its blocks of queries and of keys "
            f"share {pieces}. {ask}, or use ulysses, which splits heads."
        )
    labels = ", ".join(dict.fromkeys(mask.label for mask in blocks))
    return (
        f"these masks were to be cut for {parts} ranks of a ring between the same blocks, and all of them share "
        f"{pieces}: {labels}. {ask}, give all masks the same bounds of blocks, lay them out by themselves, or use "
        "ulysses, which splits heads."
    )


def most_tokens(mask: Mask, parts: int, ranks: int) -> int:
    """The most tokens that a rank holds under any placement of this mask alone. The ranks of a part split its tokens.

    A part has up to one unit more than its share. Under a placement that it shares with other masks a unit may be
    longer, or be of their blocks.
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


def _contiguous(_weighed: _Weighed, bounds: _Ints, parts: int) -> list[_Ints]:
    """One stretch of units for each part, which has at least one."""
    part, units = np.arange(1, parts), len(bounds) - 1
    ends = np.clip(_nearest(bounds, part * bounds[-1] / parts), part, units - parts + part)
    ends = np.r_[0, np.maximum.accumulate(ends - part) + part, units]
    return [np.arange(*pair) for pair in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _zigzag(_weighed: _Weighed, bounds: _Ints, parts: int) -> list[_Ints]:
    """Two stretches of units for each part, from both ends inwards, together as near to an equal share as they get."""
    share = np.arange(1, parts + 1) * bounds[-1] / parts
    front = _nearest(bounds, share / 2)
    back = _nearest(bounds, bounds[-1] - (share - bounds[front]))
    back = np.minimum.accumulate(np.maximum(back, front[-1]))
    starts, stops = np.r_[0, front[:-1]].tolist(), np.r_[len(bounds) - 1, back[:-1]].tolist()
    stretches = zip(starts, front.tolist(), back.tolist(), stops, strict=True)
    return [np.r_[start:early, late:stop] for start, early, late, stop in stretches]


def _balanced(weighed: _Weighed, bounds: _Ints, parts: int) -> list[_Ints]:
    """Units dealt by their weighted pairs, the largest first, each to the part with least so far that has room.

    A part has room while it holds less than its share of the dealt tokens. Units of one size are therefore dealt in
    rounds, and numbers of tokens stay as even as the units.
    """
    area, size = _pairs(weighed, bounds), np.diff(bounds)
    owner, pairs, tokens = np.empty(len(area), np.int64), np.zeros(parts), np.zeros(parts, np.int64)
    dealt = 0
    for unit in np.argsort(-area, kind="stable").tolist():
        dealt += int(size[unit])
        room = np.flatnonzero(tokens * parts < dealt)
        part = room[pairs[room].argmin()]
        owner[unit] = part
        pairs[part] += area[unit]
        tokens[part] += size[unit]
    return [np.flatnonzero(owner == part) for part in range(parts)]


def _pairs(weighed: _Weighed, bounds: _Ints) -> NDArray[np.float64]:
    """The weighted pairs of each unit: [units]. A mask that all heads share counts for as many heads as the others."""
    heads = lcm(*(mask.heads for mask, _ in weighed))
    found = np.zeros(len(bounds) - 1)
    for mask, weight in weighed:
        if isinstance(mask, BlockSparseMask):
            rows = mask.keys_by_block.sum(axis=0) * np.diff(mask.q_bounds)
            pairs = np.add.reduceat(rows, np.searchsorted(mask.q_bounds, bounds[:-1]))
        else:
            pairs = areas(mask, bounds)
        found += weight * (heads // mask.heads) * pairs
    return found


def _joined(bounds: _Ints, parts: int) -> _Ints:
    """Bounds of neighbouring units that are joined to chunks, so that a dense mask beside the blocks has few seams.

    A chunk has CHUNK tokens, or fewer if a part would have fewer than MIN_CHUNKS chunks.
    """
    chunk = min(CHUNK, int(bounds[-1]) // (parts * MIN_CHUNKS))
    chunks = int(bounds[-1]) // max(1, chunk)
    joined = np.unique(bounds[_nearest(bounds, np.arange(chunks + 1) * bounds[-1] / chunks)])
    return joined if len(joined) > parts else bounds


_DEALS: dict[str, Callable[[_Weighed, _Ints, int], list[_Ints]]] = {
    "contiguous": _contiguous,
    "zigzag": _zigzag,
    "balanced": _balanced,
}


def _nearest(bounds: _Ints, targets: NDArray[np.float64]) -> _Ints:
    """The index of the bound nearest to each target, the lower one of two equally near."""
    above = np.clip(np.searchsorted(bounds, targets), 1, len(bounds) - 1)
    nearer: _Ints = np.where(targets - bounds[above - 1] <= bounds[above] - targets, above - 1, above)
    return nearer
