"""The backward's kernels: dk and dv by key blocks, and dq by query blocks. Their loops are in `longca_triton.loops`.

Sources: FlashAttention-2 (arXiv 2307.08691, algorithm 2) and FlashMask (arXiv 2410.01359, section 4).
"""

import triton
import triton.language as tl

from longca_flashmask.walk import (
    Walk,
    advance,
    advance_head,
    columns_of,
    first_state,
    hide,
    load_intervals,
    state_at,
)
from longca_triton.loops import gather_dkdv_columns, gather_dq_columns, keep_nothing
from longca_triton.tiles import head_offset, load_rows, load_vector, store_rows

__all__ = ["gather_dkdv", "gather_dq"]


@triton.jit(do_not_specialize=["group", "scale", "seqlen_q", "seqlen_k", "padded_q"])
def gather_dkdv(
    q,
    k,
    v,
    dout,
    exponents,
    deltas,
    dk,
    dv,
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
    stride_gt,
    stride_gh,
    stride_dkt,
    stride_dkh,
    stride_dvt,
    stride_dvh,
    group,
    scale,
    seqlen_q,
    seqlen_k,
    padded_q,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTERVALS: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: dk and dv of a block of BLOCK_N keys of one KV head, from all query heads of its group.

    Args:
        q: [Tq, Hq, HEAD_DIM]. If TMA is set, q, k, v, dout, exponents and deltas are descriptors, else pointers.
        k: [Tk, Hkv, HEAD_DIM].
        v: [Tk, Hkv, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        exponents: Exponents, from `longca_triton.prepare`: float32 [Hq, padded_q].
        deltas: Deltas, from `longca_triton.prepare`: float32 [Hq, padded_q].
        dk: [Tk, Hkv, HEAD_DIM], written.
        dv: [Tk, Hkv, HEAD_DIM], written.
        starts: First query of each key's intervals: int32 [INTERVALS, Tk].
        stops: One past its last query: int32 [INTERVALS, Tk].
        rows_table: The `rows` of `tables.Tiles`, by block of keys: int32 [blocks, 4].
        runs: Runs of query blocks: int32 [runs + 1, 2].
        group: Query heads a KV head.
        scale: Factor on the scores.
        HEADS_FIRST: 1 if the grid is heads by blocks, 0 if it is blocks by heads.
    """
    entry = rows_table + tl.program_id(HEADS_FIRST) * 4
    head_kv = tl.program_id(1 - HEADS_FIRST)
    row = tl.load(entry) * BLOCK_N
    run = tl.load(entry + 1)
    num_tiles = tl.load(entry + 2)
    last_run = tl.load(entry + 3)
    first = state_at(runs, run)

    keys = row + tl.arange(0, BLOCK_N)
    firsts, lasts = load_intervals(starts, stops, keys, seqlen_k, INTERVALS)
    k_block = load_rows(k, row, head_offset(head_kv, stride_kh, TMA), stride_kt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
    v_block = load_rows(v, row, head_offset(head_kv, stride_vh, TMA), stride_vt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
    dk_sum, dv_sum = gather_dkdv_columns(
        k_block,
        v_block,
        tl.zeros([BLOCK_N, HEAD_DIM], tl.float32),
        tl.zeros([BLOCK_N, HEAD_DIM], tl.float32),
        q,
        dout,
        exponents,
        deltas,
        head_kv * group,
        stride_qt,
        stride_qh,
        stride_gt,
        stride_gh,
        seqlen_q,
        padded_q,
        scale,
        # PLAIN is never set here: with it, Triton 3.6 makes a loop that takes a third longer.
        Walk(runs, firsts, lasts, BLOCK_M, False, first, last_run),
        num_tiles * group,
        first_state,
        columns_of,
        hide,
        advance_head,
        False,
        TMA,
        TMA,
        None,
        keep_nothing,
    )
    store_rows(dk, row, head_offset(head_kv, stride_dkh, False), stride_dkt, seqlen_k, dk_sum * scale)
    store_rows(dv, row, head_offset(head_kv, stride_dvh, False), stride_dvt, seqlen_k, dv_sum)


@triton.jit(do_not_specialize=["group", "scale", "seqlen_q", "seqlen_k", "padded_q"])
def gather_dq(
    q,
    k,
    v,
    dout,
    exponents,
    deltas,
    dq,
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
    stride_gt,
    stride_gh,
    stride_dqt,
    stride_dqh,
    group,
    scale,
    seqlen_q,
    seqlen_k,
    padded_q,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    INTERVALS: tl.constexpr,
    PLAIN: tl.constexpr,
    HEADS_FIRST: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: dq of a block of BLOCK_M queries of one head.

    Args:
        q: [Tq, Hq, HEAD_DIM]. The arguments are those of `gather_dkdv`, with exponents and deltas as pointers.
        dq: [Tq, Hq, HEAD_DIM], written.
        starts: The tables, as `forward.attend` takes them.
        PLAIN: Whether each block of queries sees one run of key blocks, all of it.
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
    dout_block = load_rows(dout, row, head_offset(head, stride_gh, TMA), stride_gt, seqlen_q, BLOCK_M, HEAD_DIM, TMA)
    k_offset = head_offset(head // group, stride_kh, TMA)
    v_offset = head_offset(head // group, stride_vh, TMA)
    dq_sum = gather_dq_columns(
        q_block,
        dout_block,
        load_vector(exponents, head, row, rows, padded_q, 0, 0.0, False, False),
        load_vector(deltas, head, row, rows, padded_q, 0, 0.0, False, False),
        k,
        v,
        k_offset,
        v_offset,
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
    store_rows(dq, row, head_offset(head, stride_dqh, False), stride_dqt, seqlen_q, dq_sum * scale)
