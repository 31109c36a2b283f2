"""The forward kernel: attention of one tile of queries to the keys that its block's list names. Its loop is in
`longca_triton.loops`.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 1).
"""

import triton
import triton.language as tl

from longca_triton.loops import attend_columns
from longca_triton.softmax import normalize
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
        k: [Tk, Hkv, HEAD_DIM]. If TMA is set, k and v are descriptors, else pointers.
        v: [Tk, Hkv, HEAD_DIM].
        out: [Tq, Hq, HEAD_DIM], written.
        lse: float32 [Hq, Tq], written.
        order: The heads and the tile of each program: int32 [programs].
        tiles: Tiles of queries, as `packed_rows` takes them: int32 [tiles, 4].
        entries: Lists of runs or blocks of keys, one after another.
        offsets: The begin of each query block's list, by mask head and block: int64 [mask heads · num_lists + 1].
        steps: The steps of each list: int32 [mask heads · num_lists].
        num_tiles: Tiles of queries.
        num_lists: Query blocks.
        unit: Tokens a unit of a run's bounds.
        packed: Query heads a program: a group's, or 1.
        group: Query heads a KV head.
        heads_a_mask: Query heads that share a mask.
        scale: Factor on the scores.
        PIECE: Tokens a block if a step gathers several blocks, 0 if lists are of runs.
        EXACT: Whether every run is of whole steps.
    """
    program_head, tile = program_of(order, num_tiles)
    head = program_head * packed
    tokens, heads, inside, block = packed_rows(tiles, tile, packed, BLOCK_M)
    heads += head
    first, count, num_steps = list_of(offsets, steps, head // heads_a_mask * num_lists + block)
    entries += first if PIECE else 2 * first
    q_block = load_packed(q, tokens, heads, inside, stride_qt, stride_qh, HEAD_DIM)
    k_offset = head_offset(head // group, stride_kh, TMA)
    v_offset = head_offset(head // group, stride_vh, TMA)
    peak, total, weighted = attend_columns(
        q_block,
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
    weighted, sums = normalize(peak, total, weighted)
    store_packed(out, tokens, heads, inside, stride_ot, stride_oh, weighted)
    tl.store(lse + heads.to(tl.int64) * stride_lh + tokens.to(tl.int64) * stride_lt, sums, mask=inside)
