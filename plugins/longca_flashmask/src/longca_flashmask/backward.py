"""The backward's kernels: what each query needs of out and lse, then dk and dv by key blocks, then dq by query blocks.

No program adds to what another writes, so equal inputs give equal bits. A weight is recomputed from the log-sum-exp
that is passed in, weight = 2^(score·log₂e − lse·log₂e), whatever the other keys are; so out and lse may be those of a
larger softmax. The kernel of dk and dv computes scores as keys by queries: transposed, the weights are then at once the
left operand that dk and dv take from registers.

Sources: FlashAttention-2 (arXiv 2307.08691, algorithm 2); FlashMask (arXiv 2410.01359, section 4).
"""

import triton
import triton.language as tl

from longca_flashmask.tiles import (
    first_tile,
    load_intervals,
    load_rows,
    load_vector,
    next_tile,
    store_rows,
    visible,
)
from longca_triton.softmax import LOG2E, deltas_of, exponents_of
from longca_triton.tiles import head_offset

__all__ = ["gather_dkdv", "gather_dq", "prepare"]


@triton.jit(do_not_specialize=["stride_lh", "stride_lt", "seqlen_q", "padded_q"])
def prepare(
    out,
    dout,
    lse,
    exponents,
    deltas,
    stride_ot,
    stride_oh,
    stride_gt,
    stride_gh,
    stride_lh,
    stride_lt,
    seqlen_q,
    padded_q,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK queries of one head.

    Queries past the end, and those whose lse is −∞, get the exponent +∞, which makes every weight 0.

    Args:
        out: [Tq, Hq, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        lse: float32 [Hq, Tq].
        exponents: lse·log₂e: float32 [Hq, padded_q], written.
        deltas: Σ dout·out: float32 [Hq, padded_q], written.
        padded_q: Queries, rounded up to a multiple of every kernel's block.
    """
    head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK
    rows = row + tl.arange(0, BLOCK)
    out_block = load_rows(out, row, head_offset(head, stride_oh, False), stride_ot, seqlen_q, BLOCK, HEAD_DIM, False)
    dout_block = load_rows(dout, row, head_offset(head, stride_gh, False), stride_gt, seqlen_q, BLOCK, HEAD_DIM, False)
    delta = deltas_of(out_block, dout_block)
    sums = tl.load(
        lse + head_offset(head, stride_lh, False) + rows.to(tl.int64) * stride_lt,
        mask=rows < seqlen_q,
        other=float("-inf"),
    )
    exponent = exponents_of(sums)
    offset = head_offset(head, padded_q, False)
    tl.store(exponents + offset + rows, exponent, mask=rows < padded_q)
    tl.store(deltas + offset + rows, delta, mask=rows < padded_q)


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
        q: [Tq, Hq, HEAD_DIM]; like k, v, dout, exponents and deltas a descriptor of blocks where TMA is set, else a
            pointer.
        k: [Tk, Hkv, HEAD_DIM].
        v: [Tk, Hkv, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        exponents: What `prepare` wrote: float32 [Hq, padded_q].
        deltas: What `prepare` wrote: float32 [Hq, padded_q].
        dk: [Tk, Hkv, HEAD_DIM], written.
        dv: [Tk, Hkv, HEAD_DIM], written.
        starts: First query of each key's intervals: int32 [INTERVALS, Tk].
        stops: One past its last query: int32 [INTERVALS, Tk].
        rows_table: What `tables.py` says of each block of keys: int32 [blocks, 4].
        runs: Runs of query blocks: int32 [runs + 1, 2].
        group: Query heads a KV head.
        scale: Factor on the scores.
        HEADS_FIRST: 1 where the grid is heads by blocks, 0 where it is blocks by heads.
    """
    entry = rows_table + tl.program_id(HEADS_FIRST) * 4
    head_kv = tl.program_id(1 - HEADS_FIRST)
    row = tl.load(entry) * BLOCK_N
    first_run = tl.load(entry + 1)
    num_tiles = tl.load(entry + 2)
    last_run = tl.load(entry + 3)
    run = first_run
    first_block, first_code = first_tile(runs, run)
    block, code = first_block, first_code

    keys = row + tl.arange(0, BLOCK_N)
    firsts, lasts = load_intervals(starts, stops, keys, seqlen_k, INTERVALS)
    k_block = load_rows(k, row, head_offset(head_kv, stride_kh, TMA), stride_kt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
    v_block = load_rows(v, row, head_offset(head_kv, stride_vh, TMA), stride_vt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)

    factor = scale * LOG2E
    head = head_kv * group
    dk_sum = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv_sum = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    for _ in range(num_tiles * group):
        column = block * BLOCK_M
        queries = column + tl.arange(0, BLOCK_M)
        q_block = load_rows(q, column, head_offset(head, stride_qh, TMA), stride_qt, seqlen_q, BLOCK_M, HEAD_DIM, TMA)
        dout_block = load_rows(
            dout, column, head_offset(head, stride_gh, TMA), stride_gt, seqlen_q, BLOCK_M, HEAD_DIM, TMA
        )
        exponent = load_vector(exponents, head, column, padded_q, BLOCK_M, TMA)
        delta = load_vector(deltas, head, column, padded_q, BLOCK_M, TMA)
        scores = tl.dot(k_block, tl.trans(q_block))
        weights = tl.exp2(scores * factor - exponent[None, :])
        if code & 1:
            weights = tl.where(visible(firsts, lasts, queries, INTERVALS), weights, 0.0)
        dv_sum = tl.dot(weights.to(dout_block.dtype), dout_block, dv_sum)
        dweights = tl.dot(v_block, tl.trans(dout_block))
        dscores = weights * (dweights - delta[None, :])
        dk_sum = tl.dot(dscores.to(q_block.dtype), q_block, dk_sum)

        # Were each row's tiles known to be one run, Triton 3.6 would make of this loop one that takes a third longer.
        run, block, code = next_tile(runs, run, block, code, False)
        is_last = run == last_run
        head += is_last.to(tl.int32)
        run = tl.where(is_last, first_run, run)
        block = tl.where(is_last, first_block, block)
        code = tl.where(is_last, first_code, code)

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
        q: [Tq, Hq, HEAD_DIM]; like k, v and dout a descriptor of blocks where TMA is set, else a pointer.
        k: [Tk, Hkv, HEAD_DIM].
        v: [Tk, Hkv, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        exponents: What `prepare` wrote: float32 [Hq, padded_q].
        deltas: What `prepare` wrote: float32 [Hq, padded_q].
        dq: [Tq, Hq, HEAD_DIM], written.
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
    q_block = load_rows(q, row, head_offset(head, stride_qh, TMA), stride_qt, seqlen_q, BLOCK_M, HEAD_DIM, TMA)
    dout_block = load_rows(dout, row, head_offset(head, stride_gh, TMA), stride_gt, seqlen_q, BLOCK_M, HEAD_DIM, TMA)
    k_head = head_offset(head // group, stride_kh, TMA)
    v_head = head_offset(head // group, stride_vh, TMA)
    exponent = load_vector(exponents, head, row, padded_q, BLOCK_M, False)
    delta = load_vector(deltas, head, row, padded_q, BLOCK_M, False)

    factor = scale * LOG2E
    dq_sum = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for _ in range(num_tiles):
        column = block * BLOCK_N
        k_block = load_rows(k, column, k_head, stride_kt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
        v_block = load_rows(v, column, v_head, stride_vt, seqlen_k, BLOCK_N, HEAD_DIM, TMA)
        scores = tl.dot(q_block, tl.trans(k_block))
        weights = tl.exp2(scores * factor - exponent[:, None])
        if not PLAIN:
            if code & 1:
                seen = visible(firsts, lasts, column + tl.arange(0, BLOCK_N), INTERVALS)
                weights = tl.where(seen, weights, 0.0)
        dweights = tl.dot(dout_block, tl.trans(v_block))
        dscores = weights * (dweights - delta[:, None])
        dq_sum = tl.dot(dscores.to(k_block.dtype), k_block, dq_sum)
        run, block, code = next_tile(runs, run, block, code, PLAIN)

    store_rows(dq, row, head_offset(head, stride_dqh, False), stride_dqt, seqlen_q, dq_sum * scale)
