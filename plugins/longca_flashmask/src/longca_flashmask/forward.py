"""The forward kernel: attention of one block of queries to the key blocks that its mask shows. Its loop is in
`longca_triton.loops`.

Sources: FlashAttention-2 (arXiv 2307.08691, algorithm 1) and FlashMask (arXiv 2410.01359, section 4: interval masks,
and hidden tiles skipped).
"""

import triton
import triton.language as tl

from longca_flashmask.walk import Walk, advance, columns_of, first_state, hide, load_intervals, state_at
from longca_triton.loops import attend_columns
from longca_triton.softmax import normalize
from longca_triton.tiles import head_offset, load_rows, store_rows

__all__ = ["attend"]


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
        q: [Tq, Hq, HEAD_DIM]. If TMA is set, q, k and v are descriptors, else pointers.
        k: [Tk, Hkv, HEAD_DIM].
        v: [Tk, Hkv, HEAD_DIM].
        out: [Tq, Hq, HEAD_DIM], written.
        lse: float32 [Hq, Tq], written.
        starts: First key of each query's intervals: int32 [INTERVALS, Tq].
        stops: One past its last key: int32 [INTERVALS, Tq].
        rows_table: The `rows` of `tables.Tiles`, by block of queries: int32 [blocks, 4].
        runs: Runs of key blocks: int32 [runs + 1, 2].
        group: Query heads a KV head.
        scale: Factor on the scores.
        PLAIN: Whether each block of queries sees one run of key blocks, all of it.
        HEADS_FIRST: 1 if the grid is heads by blocks, 0 if it is blocks by heads.
    """
    entry = rows_table + tl.program_id(HEADS_FIRST) * 4
    head = tl.program_id(1 - HEADS_FIRST)
    row = tl.load(entry) * BLOCK_M
    run = tl.load(entry + 1)
    num_tiles = tl.load(entry + 2)
    first = state_at(runs, run)

    rows = row + tl.arange(0, BLOCK_M)
    firsts, lasts = load_intervals(starts, stops, rows, seqlen_q, INTERVALS)
    q_block = load_rows(q, row, head_offset(head, stride_qh, TMA), stride_qt, seqlen_q, BLOCK_M, HEAD_DIM, TMA)
    peak, total, weighted = attend_columns(
        q_block,
        k,
        v,
        head_offset(head // group, stride_kh, TMA),
        head_offset(head // group, stride_vh, TMA),
        stride_kt,
        stride_vt,
        seqlen_k,
        scale,
        Walk(runs, firsts, lasts, BLOCK_N, PLAIN, first, run),
        num_tiles,
        first_state,
        columns_of,
        hide,
        advance,
        TMA,
    )
    weighted, sums = normalize(peak, total, weighted)
    store_rows(out, row, head_offset(head, stride_oh, False), stride_ot, seqlen_q, weighted)
    tl.store(lse + head_offset(head, stride_lh, False) + rows.to(tl.int64) * stride_lt, sums, mask=rows < seqlen_q)
