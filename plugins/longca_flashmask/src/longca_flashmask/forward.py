"""The forward kernel: attention of one block of queries to the key blocks that its mask shows.

Scores are kept in powers of two, the scale times log₂e being folded into one multiplication. The running maximum starts
at a large negative number rather than −∞, so that rows that have seen nothing yet need no care: their weights are
2^(−∞) = 0, and no NaN arises.

Sources: FlashAttention-2 (arXiv 2307.08691, algorithm 1); FlashMask (arXiv 2410.01359, section 4: interval masks, and
hidden tiles skipped).
"""

import triton
import triton.language as tl

from longca_flashmask.tiles import (
    LN2,
    LOG2E,
    first_tile,
    load_intervals,
    load_rows,
    next_tile,
    start_of_head,
    store_rows,
    visible,
)

__all__ = ["attend"]

_LOWEST: tl.constexpr = tl.constexpr(-1.0e38)


@triton.jit(do_not_specialize=["stride_lh", "stride_lt", "group", "scale", "seqlen_q", "seqlen_k"])
def attend(
    q,
    k,
    v,
    out,
    lse,
    starts,
    stops,
    rows_table,
    runs,
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
    group,
    scale,
    seqlen_q,
    seqlen_k,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTERVALS: tl.constexpr,
    PLAIN: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: a block of BLOCK_M queries of one head.

    Args:
        q: [Tq, Hq, HEAD_DIM]; like k and v a descriptor of blocks where TMA is set, else a pointer.
        k: [Tk, Hkv, HEAD_DIM].
        v: [Tk, Hkv, HEAD_DIM].
        out: [Tq, Hq, HEAD_DIM], written.
        lse: float32 [Hq, Tq], written.
        starts: First key of each query's intervals: int32 [INTERVALS, Tq].
        stops: One past its last key: int32 [INTERVALS, Tq].
        rows_table: What `tables.py` says of each block of queries: int32 [blocks, 4].
        runs: Runs of key blocks: int32 [runs + 1, 2].
        group: Query heads a KV head.
        scale: Factor on the scores.
        PLAIN: Whether each block of queries sees one run of key blocks, all of it.
        HEADS_FIRST: 1 where the grid is heads by blocks, 0 where it is blocks by heads.
    """
    entry = rows_table + tl.program_id(HEADS_FIRST) * 4
    head = tl.program_id(1 - HEADS_FIRST)
    row = tl.load(entry) * BLOCK_M
    run = tl.load(entry + 1)
    num_tiles = tl.load(entry + 2)
    block, code = first_tile(runs, run)

    rows = row + tl.arange(0, BLOCK_M)
    firsts, lasts = load_intervals(starts, stops, rows, seqlen_q, INTERVALS)
    q_block = load_rows(q, row, start_of_head(head, stride_qh, TMA), stride_qt, seqlen_q, BLOCK_M, HEAD_DIM, TMA)
    k_head = start_of_head(head // group, stride_kh, TMA)
    v_head = start_of_head(head // group, stride_vh, TMA)

    factor = scale * LOG2E
    peak = tl.full([BLOCK_M], _LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for _ in range(num_tiles):
        column = block * BLOCK_N
        k_block = load_rows(k, column, k_head, stride_kt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
        scores = tl.dot(q_block, tl.trans(k_block))
        if not PLAIN:
            if code & 1:
                seen = visible(firsts, lasts, column + tl.arange(0, BLOCK_N), INTERVALS)
                scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - new_peak[:, None])
        correction = tl.exp2(peak - new_peak)
        total = total * correction + tl.sum(weights, 1)
        weighted = weighted * correction[:, None]
        v_block = load_rows(v, column, v_head, stride_vt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
        weighted = tl.dot(weights.to(v_block.dtype), v_block, weighted)
        peak = new_peak
        run, block, code = next_tile(runs, run, block, code, PLAIN)

    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    weighted = weighted / total[:, None]
    sums = tl.where(is_empty, float("-inf"), peak * LN2 + tl.log(total))
    store_rows(out, row, start_of_head(head, stride_oh, False), stride_ot, seqlen_q, weighted)
    tl.store(lse + start_of_head(head, stride_lh, False) + rows.to(tl.int64) * stride_lt, sums, mask=rows < seqlen_q)
