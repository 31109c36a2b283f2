"""Attention by the book, a block of queries at a time, so that memory stays linear in the sequence.

One function for each direction serves three users: the oracle (float64), the `naive` kernel (float32), and PyTorch's
arithmetic in low precision, whose error sets the tolerance for other kernels. In low precision every intermediate is
rounded, and sums over blocks are kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockSparseMask, Form, Mask, SliceMask
from longca.metadata.kept_blocks import VisibleRows

__all__ = [
    "QueryBlock",
    "ample_scores",
    "attention_backward",
    "attention_forward",
    "query_blocks",
]

# Scores of a block, over all heads. They fit into the caches of CPUs, and keep GPUs busy (1 GiB in float64).
_SCORES = {"cpu": 2**20, "cuda": 2**27}
_BYTES_A_SCORE = 96  # a little more than a backward in float64 has at a time
_LEAST_ROWS = 16
#: Keys that a query counts as seeing at least. Its own rows of q, out and dq take as much memory as their scores.
_LEAST_KEYS = 128
# Scores over all heads that joined rows of blocks may have more than apart. They take as long as starting a block.
_FEW = {"cpu": 2**17, "cuda": 2**23}
_MOST_INTERVALS = 16  # intervals of a row. Masks with more are made dense


@dataclass(frozen=True)
class QueryBlock:
    """Some queries, the keys (a slice, or ascending int64 positions), and what they see: bool [1 or mask heads,
    queries, keys].
    """

    queries: slice
    keys: slice | Tensor
    visible: Tensor


def ample_scores(device: torch.device) -> int:
    """Scores of a block for a caller that may use most of a device's free memory."""
    if device.type == "cpu":
        return _SCORES["cpu"]
    mine = torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - mine
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total) - mine
    return max(_SCORES["cuda"], min(min(free, allowed) // _BYTES_A_SCORE, 8 * _SCORES["cuda"]))


def query_blocks(mask: Mask, heads_q: int, device: torch.device, scores: int | None = None) -> Iterator[QueryBlock]:
    """The mask in blocks of at least 16 queries, with at most `scores` scores over all heads.

    None for the device's default.
    """
    heads_q = max(1, heads_q)
    scores = (_SCORES[device.type] if scores is None else scores) // heads_q
    if isinstance(mask, SliceMask) and mask.count(Form.ROW_INTERVALS) <= _MOST_INTERVALS:
        yield from _from_intervals(mask, scores, device)
        return
    if isinstance(mask, BlockSparseMask):
        yield from _from_kept(mask, scores, _FEW[device.type] // heads_q, device)
        return
    height = _rows(scores, mask.seqlen_k)
    for first in range(0, mask.seqlen_q, height):
        last = min(first + height, mask.seqlen_q)
        yield QueryBlock(slice(first, last), slice(0, mask.seqlen_k), _dense(mask, first, last, device))


def _from_kept(mask: BlockSparseMask, scores: int, few: int, device: torch.device) -> Iterator[QueryBlock]:
    """Blocks with the keys that some head keeps for some of their queries."""
    rows = VisibleRows(mask, device)
    for begin, end, keys in _bands(mask, scores, few):
        held = slice(0, mask.seqlen_k) if len(keys) == mask.seqlen_k else torch.from_numpy(keys).to(device)
        height = _rows(scores, len(keys))
        for first in range(begin, end, height):
            last = min(first + height, end)
            yield QueryBlock(slice(first, last), held, rows(first, last, held))


def _rows(scores: int, keys: int) -> int:
    """Queries of a block that see some keys each."""
    return max(_LEAST_ROWS, scores // max(_LEAST_KEYS, keys))


def _bands(mask: BlockSparseMask, scores: int, few: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Queries of neighbouring query blocks, and the keys that they see. They join if that makes `few` scores more."""
    kept = np.unpackbits(np.bitwise_or.reduce(mask.bits), axis=-1, count=len(mask.k_bounds) - 1).view(np.bool_)
    sizes, bounds = np.diff(mask.k_bounds), mask.q_bounds
    positions = np.arange(mask.seqlen_k)
    areas = np.diff(bounds) * (kept @ sizes)
    at = 0
    while at < len(kept):
        seen, area, end = kept[at], areas[at], at + 1
        while end < len(kept):
            wider = seen | kept[end]
            height = bounds[end + 1] - bounds[at]
            joined = height * int(sizes[wider].sum())
            if height > _LEAST_ROWS and joined > min(scores, area + areas[end] + few):
                break
            seen, area, end = wider, area + areas[end], end + 1
        yield int(bounds[at]), int(bounds[end]), positions[seen.repeat(sizes)]
        at = end


def _dense(mask: Mask, first: int, last: int, device: torch.device) -> Tensor:
    """Some rows of a mask with too many intervals in a row: bool [1 or heads, rows, keys]."""
    visible = torch.from_numpy(mask.cut([(first, last)], [(0, mask.seqlen_k)]).dense()).to(device)
    return visible if visible.dim() == 3 else visible[None]


def _from_intervals(mask: SliceMask, scores: int, device: torch.device) -> Iterator[QueryBlock]:
    """Blocks that the device makes from the rows' intervals. Blocks of fewer keys have more queries."""
    starts, stops = mask.row_intervals()
    there = [torch.from_numpy(side).to(device) for side in (starts, stops)]
    shown = stops > starts
    lowest = np.where(shown, starts, mask.seqlen_k).min(axis=0, initial=mask.seqlen_k)
    highest = np.where(shown, stops, 0).max(axis=0, initial=0)
    first = 0
    while first < mask.seqlen_q:
        last, start, stop = _reach(first, lowest, highest, scores)
        key = torch.arange(start, stop, dtype=torch.int32, device=device)
        begin, end = (side[:, first:last, None] for side in there)
        visible = torch.zeros((last - first, stop - start), dtype=torch.bool, device=device)
        for interval in range(len(starts)):
            visible |= (key >= begin[interval]) & (key < end[interval])
        yield QueryBlock(slice(first, last), slice(start, stop), visible[None])
        first = last


def _reach(first: int, lowest: NDArray[np.int32], highest: NDArray[np.int32], scores: int) -> tuple[int, int, int]:
    """The end of a block of queries whose scores stay in bounds, and the range of keys that it sees."""
    height = _LEAST_ROWS
    while True:
        last = min(first + height, len(lowest))
        start, stop = int(lowest[first:last].min()), int(highest[first:last].max())
        wider = min(first + 2 * height, len(lowest))
        span = int(highest[first:wider].max()) - int(lowest[first:wider].min())
        if last == len(lowest) or (wider - first) * max(_LEAST_KEYS, span) > scores:
            return last, min(start, stop), stop
        height *= 2


def attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float,
    dtype: torch.dtype,
    see: Callable[[QueryBlock, Tensor], None] | None = None,
    *,
    softcap: float | None = None,
    ample: bool = False,
) -> tuple[Tensor, Tensor]:
    """out [Tq, Hq, Dv] in `dtype`, and lse [Hq, Tq] in float32 (float64 for float64), with intermediates in `dtype`.

    `softcap` is that of `Problem`. `see` gets each block and its weights [Hkv, G, queries, keys]. Blocks of an `ample`
    call take most of the memory that the results leave. Larger blocks are faster.
    """
    wide = _widened(dtype)
    k, v = k.to(dtype), v.to(dtype)
    out = torch.zeros((*q.shape[:2], v.shape[2]), dtype=dtype, device=q.device)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=wide, device=q.device)
    for block in query_blocks(mask, q.shape[1], q.device, ample_scores(q.device) if ample else None):
        scores = _masked_scores(q[block.queries].to(dtype), k[block.keys], block.visible, scale, softcap).to(wide)
        lse[:, block.queries] = scores.logsumexp(-1).flatten(0, 1)
        weights = _softmax_weights(scores, lse[:, block.queries])
        if see is not None:
            see(block, weights)
        out[block.queries] = _ungroup_heads(_product(weights.to(dtype), v[block.keys].permute(1, 0, 2)[:, None]))
    return out, lse


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Mask,
    scale: float,
    dtype: torch.dtype,
    see: Callable[[QueryBlock, Tensor, Tensor], None] | None = None,
    *,
    softcap: float | None = None,
    ample: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq [Tq, Hq, D], dk [Tk, Hkv, D] and dv [Tk, Hkv, Dv], in `dtype`. out and lse may belong to a larger softmax.

    `see` gets each block, its weights and its products of dout and v: [Hkv, G, queries, keys] each. `softcap` and
    `ample` are those of the forward.
    """
    wide = _widened(dtype)
    k, v = k.to(dtype), v.to(dtype)
    dq = torch.zeros(q.shape, dtype=dtype, device=q.device)
    # PyTorch repeats KV heads. In half precision it rounds each query head's gradients before it sums a group.
    apart = dtype.itemsize == 2
    heads = q.shape[1] if apart else k.shape[1]
    dk, dv = (torch.zeros((len(x), heads, x.shape[2]), dtype=wide, device=k.device) for x in (k, v))
    for block in query_blocks(mask, q.shape[1], q.device, ample_scores(q.device) if ample else None):
        queries, keys = block.queries, block.keys
        group = k.shape[1]
        k_block, v_block = (x[keys].permute(1, 0, 2)[:, None] for x in (k, v))  # [Hkv, 1, keys, D]
        q_rows, do_rows = q[queries].to(dtype), dout[queries].to(dtype)
        q_block, do_block = _group_heads(q_rows, group), _group_heads(do_rows, group)  # [Hkv, G, queries, D]
        delta = (do_rows.to(wide) * out[queries].to(wide)).sum(-1).T  # [Hq, queries]
        scores = _masked_scores(q_rows, k[keys], block.visible, scale, softcap).to(wide)
        # The slope of a cap. A hidden score is −∞, and has no weight.
        bend = None if softcap is None else (1 - (scores / softcap).square_()).clamp_min_(0.0)
        weights = _softmax_weights(scores, lse[:, queries].to(wide))
        slope = _product(do_block, v_block.transpose(-1, -2)).to(wide)
        if see is not None:
            see(block, weights, slope)
        slope -= delta.unflatten(0, (group, -1))[..., None]
        if bend is not None:
            slope *= bend
        dscores = slope.mul_(weights).mul_(scale).to(dtype)
        dq[queries] = _ungroup_heads(_product(dscores, k_block))
        total = _each_head if apart else _sum_over_group
        dk[keys] += total(dscores, q_block).to(wide)
        dv[keys] += total(weights.to(dtype), do_block).to(wide)
    if apart:
        dk, dv = (x.to(dtype).unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))
    return dq, dk.to(dtype), dv.to(dtype)


def _widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums over intermediates of a dtype: float64 for float64, or else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product. On CPUs that of halves is float32's, rounded.

    PyTorch sums products of halves in float32 on CPUs too, and takes up to 25 times as long if the CPU has no
    instructions for halves.
    """
    if a.dtype.itemsize == 2 and a.device.type == "cpu":
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b


def _group_heads(x: Tensor, heads_kv: int) -> Tensor:
    """[queries, Hq, D] → [Hkv, G, queries, D], where G query heads share a KV head."""
    return x.permute(1, 0, 2).unflatten(0, (heads_kv, -1))


def _ungroup_heads(x: Tensor) -> Tensor:
    """[Hkv, G, queries, D] → [queries, Hq, D]."""
    return x.flatten(0, 1).permute(1, 0, 2)


def _sum_over_group(weights: Tensor, x: Tensor) -> Tensor:
    """Sums over queries and the group's heads of weights [Hkv, G, queries, keys] times x: [keys, Hkv, D]."""
    return _product(weights.flatten(1, 2).transpose(-1, -2), x.flatten(1, 2)).permute(1, 0, 2)


def _each_head(weights: Tensor, x: Tensor) -> Tensor:
    """Sums over queries of weights [Hkv, G, queries, keys] times x [Hkv, G, queries, D]: [keys, Hq, D]."""
    return _product(weights.transpose(-1, -2), x).flatten(0, 1).permute(1, 0, 2)


def _masked_scores(q: Tensor, k: Tensor, visible: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Scaled and capped scores [Hkv, G, queries, keys], −∞ for hidden keys."""
    heads_kv = k.shape[1]
    scores = _product(_group_heads(q, heads_kv), k.permute(1, 2, 0)[:, None]).mul_(scale)
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    # One mask for all heads, one for each KV head, or one for each query head.
    shown = visible[None] if visible.shape[0] == 1 else visible.unflatten(0, (heads_kv, -1))
    return scores.masked_fill_(~shown, -torch.inf)


def _softmax_weights(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores − lse), and 0 in rows that see nothing at all, in the scores' memory."""
    grouped = lse.unflatten(0, scores.shape[:2])[..., None]
    return scores.sub_(grouped.masked_fill(grouped == -torch.inf, 0.0)).exp_()
