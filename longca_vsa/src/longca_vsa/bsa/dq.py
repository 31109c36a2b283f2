"""The backward's kernel by query blocks: dq of a tile of queries, gathered from all keys that its block sees.

The loop is in `longca_triton.loops`.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 2).
"""

import triton
import triton.language as tl

from longca_triton.loops import gather_dq_columns
from longca_triton.tiles import head_offset
from longca_vsa.bsa.rows import load_packed, packed_rows, program_of, store_packed
from longca_vsa.bsa.walk import (
    Walk,
    advance,
    columns_of,
    first_state,
    hide,
    list_of,
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
        q: [Tq, Hq, HEAD_DIM]. The arguments are those of `forward.attend`, with this kernel's tiles and steps.
        dout: [Tq, Hq, HEAD_DIM].
        exponents: Exponents, from `longca_triton.prepare`: float32 [Hq, padded_q].
        deltas: Deltas, from `longca_triton.prepare`: float32 [Hq, padded_q].
        dq: [Tq, Hq, HEAD_DIM], written.
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
    k_offset = head_offset(head // group, stride_kh, TMA)
    v_offset = head_offset(head // group, stride_vh, TMA)
    dq_sum = gather_dq_columns(
        q_block,
        dout_block,
        exponent,
        delta,
        k,
        v,
        k_offset,
        v_offset,
        stride_kt,
        stride_vt,
        seqlen_k,
        scale,
        Walk(entries, count, num_steps, unit, seqlen_k, BLOCK_N, PIECE, EXACT),
        num_steps,
        first_state,
        columns_of,
        hide,
        advance,
        TMA,
    )

    tokens, heads, inside, _ = packed_rows(tiles, tile, packed, BLOCK_M)
    heads += head
    store_packed(dq, tokens, heads, inside, stride_dqt, stride_dqh, dq_sum * scale)
