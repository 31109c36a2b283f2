"""The backward's kernel by query blocks: dq of a tile of queries, gathered from all keys that its block sees.

No program adds to what another writes, so equal inputs give equal bits.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 2).
"""

import triton
import triton.language as tl

from longca_triton.softmax import LOG2E
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

__all__ = ["gather_dq"]


@triton.jit(
    do_not_specialize=[
        "num_tiles",
        "num_lists",
        "unit",
        "packed",
        "group",
        "heads_a_mask",
        "scale",
        "seqlen_k",
        "padded_q",
    ]
)
def gather_dq(
    q,
    k,
    v,
    dout,
    exponents,
    deltas,
    dq,
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
    stride_gt,
    stride_gh,
    stride_dqt,
    stride_dqh,
    num_tiles,
    num_lists,
    unit,
    packed,
    group,
    heads_a_mask,
    scale,
    seqlen_k,
    padded_q,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PIECE: tl.constexpr,
    EXACT: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: dq of a tile of BLOCK_M rows, queries of one block under `packed` heads that share a mask.

    Args:
        q: [Tq, Hq, HEAD_DIM].
        k: [Tk, Hkv, HEAD_DIM]; like v a descriptor of blocks where TMA is set, else a pointer.
        v: [Tk, Hkv, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        exponents: What `prepare` wrote: float32 [Hq, padded_q].
        deltas: What `prepare` wrote: float32 [Hq, padded_q].
        dq: [Tq, Hq, HEAD_DIM], written.
        order: As in `attend`, with the rest of the tables, of this kernel's tiles and steps.
    """
    program_head, tile = program_of(order, num_tiles)
    head = program_head * packed
    tokens, heads, inside, block = packed_rows(tiles, tile, packed, BLOCK_M)
    heads += head
    first, count, num_steps = list_of(offsets, steps, head // heads_a_mask * num_lists + block)
    entries += first if PIECE else 2 * first
    q_block = load_packed(q, tokens, heads, inside, stride_qt, stride_qh, HEAD_DIM)
    dout_block = load_packed(dout, tokens, heads, inside, stride_gt, stride_gh, HEAD_DIM)
    prepared = heads.to(tl.int64) * padded_q + tokens
    exponent = tl.load(exponents + prepared, mask=inside, other=float("inf"))
    delta = tl.load(deltas + prepared, mask=inside, other=0.0)
    k_head = head_offset(head // group, stride_kh, TMA)
    v_head = head_offset(head // group, stride_vh, TMA)

    factor = scale * LOG2E
    dq_sum = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    column, stop, next_start, next_stop, index = 0, seqlen_k, 0, 0, 0
    if PIECE == 0:
        column, stop, next_start, next_stop, index = first_run(entries, count, unit, seqlen_k)
    for step in range(num_steps):
        if PIECE:
            keys = piece_columns(entries, count, step, seqlen_k, BLOCK_N, PIECE)
        else:
            keys = column + tl.arange(0, BLOCK_N)
        k_block = load_tokens(k, column, keys, k_head, stride_kt, seqlen_k, HEAD_DIM, TMA)
        v_block = load_tokens(v, column, keys, v_head, stride_vt, seqlen_k, HEAD_DIM, TMA)
        scores = tl.dot(q_block, tl.trans(k_block))
        weights = tl.exp2(scores * factor - exponent[:, None])
        if PIECE:
            # Only the last step can have fewer blocks, or the one that the sequence's end cuts short.
            if step == num_steps - 1:
                weights = tl.where(keys[None, :] < seqlen_k, weights, 0.0)
        elif not EXACT:
            if column + BLOCK_N > stop:
                weights = tl.where(keys[None, :] < stop, weights, 0.0)
        dweights = tl.dot(dout_block, tl.trans(v_block))
        dscores = weights * (dweights - delta[:, None])
        dq_sum = tl.dot(dscores.to(k_block.dtype), k_block, dq_sum)
        if PIECE == 0:
            column, stop, next_start, next_stop, index, _ = next_run(
                entries, count, unit, seqlen_k, column, stop, next_start, next_stop, index, BLOCK_N
            )

    tokens, heads, inside, _ = packed_rows(tiles, tile, packed, BLOCK_M)
    heads += head
    store_packed(dq, tokens, heads, inside, stride_dqt, stride_dqh, dq_sum * scale)
