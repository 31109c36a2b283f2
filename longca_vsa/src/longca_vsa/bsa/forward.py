"""The forward kernel: attention of one tile of queries to the keys that its block's list names.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 1).
"""

import triton
import triton.language as tl

from longca_triton.softmax import LOG2E, LOWEST, normalize, weigh
from longca_triton.tiles import head_offset, load_tokens
from longca_vsa.bsa.tiles import (
    first_run,
    list_of,
    load_packed,
    next_run,
    packed_rows,
    piece_columns,
    program_of,
    store_packed,
)

__all__ = ["attend"]


@triton.jit(
    do_not_specialize=[
        "stride_lh",
        "stride_lt",
        "num_tiles",
        "num_lists",
        "unit",
        "packed",
        "group",
        "heads_a_mask",
        "scale",
        "seqlen_k",
    ]
)
def attend(
    q,
    k,
    v,
    out,
    lse,
    order,
    tiles,
    entries,
    offsets,
    steps,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    stride_lh,
    stride_lt,
    num_tiles,
    num_lists,
    unit,
    packed,
    group,
    heads_a_mask,
    scale,
    seqlen_k,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PIECE: tl.constexpr,
    EXACT: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: a tile of BLOCK_M rows, queries of one block under `packed` heads that share a mask and a KV head.

    Args:
        q: [Tq, Hq, HEAD_DIM].
        k: [Tk, Hkv, HEAD_DIM]; like v a descriptor of blocks where TMA is set, else a pointer.
        v: [Tk, Hkv, HEAD_DIM].
        out: [Tq, Hq, HEAD_DIM], written.
        lse: float32 [Hq, Tq], written.
        order: Which tile of which heads each program has: int32 [programs].
        tiles: Tiles of queries, as `packed_rows` takes them: int32 [tiles, 4].
        entries: Lists of runs or blocks of keys, one after another.
        offsets: Where each query block's list begins, by mask head and block: int64 [mask heads · num_lists + 1].
        steps: How many steps each list makes: int32 [mask heads · num_lists].
        num_tiles: Tiles of queries.
        num_lists: Query blocks.
        unit: Tokens a unit of a run's bounds.
        packed: Query heads a program: a group's, or 1.
        group: Query heads a KV head.
        heads_a_mask: Query heads that share a mask.
        scale: Factor on the scores.
        PIECE: Tokens a block where a step gathers several, 0 where lists are of runs.
        EXACT: Whether every run is of whole steps.
    """
    program_head, tile = program_of(order, num_tiles)
    head = program_head * packed
    tokens, heads, inside, block = packed_rows(tiles, tile, packed, BLOCK_M)
    heads += head
    first, count, num_steps = list_of(offsets, steps, head // heads_a_mask * num_lists + block)
    entries += first if PIECE else 2 * first
    q_block = load_packed(q, tokens, heads, inside, stride_qt, stride_qh, HEAD_DIM)
    k_head = head_offset(head // group, stride_kh, TMA)
    v_head = head_offset(head // group, stride_vh, TMA)

    factor = scale * LOG2E
    peak = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    column, stop, next_start, next_stop, index = 0, seqlen_k, 0, 0, 0
    if PIECE == 0:
        column, stop, next_start, next_stop, index = first_run(entries, count, unit, seqlen_k)
    for step in range(num_steps):
        if PIECE:
            keys = piece_columns(entries, count, step, seqlen_k, BLOCK_N, PIECE)
        else:
            keys = column + tl.arange(0, BLOCK_N)
        k_block = load_tokens(k, column, keys, k_head, stride_kt, seqlen_k, HEAD_DIM, TMA)
        scores = tl.dot(q_block, tl.trans(k_block))
        if PIECE:
            # Blocks ascend, so that only the last step can have fewer, or the one that the sequence's end cuts short.
            if step == num_steps - 1:
                scores = tl.where(keys[None, :] < seqlen_k, scores, float("-inf"))
        elif not EXACT:
            if column + BLOCK_N > stop:
                scores = tl.where(keys[None, :] < stop, scores, float("-inf"))
        weights, peak, total, weighted = weigh(scores, factor, peak, total, weighted)
        v_block = load_tokens(v, column, keys, v_head, stride_vt, seqlen_k, HEAD_DIM, TMA)
        weighted = tl.dot(weights.to(v_block.dtype), v_block, weighted)
        if PIECE == 0:
            column, stop, next_start, next_stop, index, _ = next_run(
                entries, count, unit, seqlen_k, column, stop, next_start, next_stop, index, BLOCK_N
            )

    tokens, heads, inside, _ = packed_rows(tiles, tile, packed, BLOCK_M)
    heads += head
    weighted, sums = normalize(peak, total, weighted)
    store_packed(out, tokens, heads, inside, stride_ot, stride_oh, weighted)
    tl.store(lse + heads.to(tl.int64) * stride_lh + tokens.to(tl.int64) * stride_lt, sums, mask=inside)
