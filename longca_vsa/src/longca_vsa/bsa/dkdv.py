"""The backward's kernel by key blocks: dk and dv of a tile of keys, gathered from all queries that see its block.

The loop is in `longca_triton.loops`. A query's exponent hides it: a vector is enough.

Source: FlashAttention-2 (arXiv 2307.08691, algorithm 2).
"""

import triton
import triton.language as tl

from longca_triton.loops import gather_dkdv_columns, hide_nothing, keep_nothing
from longca_triton.tiles import head_offset, load_tokens
from longca_vsa.bsa.rows import load_packed, packed_rows, program_of, store_packed
from longca_vsa.bsa.score_tiles import Place, keep
from longca_vsa.bsa.walk import (
    Walk,
    advance_head,
    first_head_state,
    head_columns,
    list_of,
)

__all__ = ["gather_dkdv"]


@triton.jit(
    do_not_specialize=[
        "num_tiles",
        "num_lists",
        "unit",
        "first_head",
        "passes",
        "repeats",
        "group",
        "heads_a_mask",
        "scale",
        "seqlen_q",
        "seqlen_k",
        "padded_q",
    ]
)
def gather_dkdv(
    q,
    k,
    v,
    dout,
    exponents,
    deltas,
    dk_sums,
    dv_sums,
    dk,
    dv,
    dscores,
    first_rows,
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
    stride_st,
    stride_dkt,
    stride_dkh,
    stride_dvt,
    stride_dvh,
    num_tiles,
    num_lists,
    unit,
    first_head,
    passes,
    repeats,
    group,
    heads_a_mask,
    scale,
    seqlen_q,
    seqlen_k,
    padded_q,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PIECE: tl.constexpr,
    EXACT: tl.constexpr,
    TMA: tl.constexpr,
    VECTORS: tl.constexpr,
    ADDS: tl.constexpr,
    STORED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One program: dk and dv of BLOCK_N keys of one block and one KV head, from some query heads of its group.

    Args:
        q: [Tq, Hq, HEAD_DIM]. If TMA is set, q, k, v and dout are descriptors, else pointers.
        k: [Tk, Hkv, HEAD_DIM].
        v: [Tk, Hkv, HEAD_DIM].
        dout: [Tq, Hq, HEAD_DIM].
        exponents: Exponents, from `longca_triton.prepare`: float32 [Hq, padded_q]. If VECTORS is set, exponents and
            deltas are descriptors.
        deltas: Deltas, from `longca_triton.prepare`: float32 [Hq, padded_q].
        dk_sums: The sum of earlier launches for dk, if ADDS is set: float32 [Tk, Hkv, HEAD_DIM], contiguous.
        dv_sums: The same for dv.
        dk: [Tk, Hkv, HEAD_DIM], written. The sums themselves, if other launches follow.
        dv: The same for dv.
        dscores: The descriptor of stored gradients of scores, if STORED is set.
        first_rows: The first row of each KV head's tiles there: int32 [Hkv, tiles], if STORED is set.
        order: The KV head and the tile of each program: int32 [programs].
        tiles: Tiles of keys, as `packed_rows` takes them: int32 [tiles, 4].
        entries: Lists of runs or blocks of queries, one after another.
        offsets: The begin of each key block's list, by mask head and block: int64 [mask heads · num_lists + 1].
        steps: The steps of each list: int32 [mask heads · num_lists].
        num_tiles: Tiles of keys.
        num_lists: Key blocks.
        unit: Tokens a unit of a run's bounds.
        first_head: The first head of its group that the program takes.
        passes: Lists that the program walks: 1 that all heads share, or one for each head.
        repeats: Times that the program walks each list, for one head each time.
        group: Query heads a KV head.
        heads_a_mask: Query heads that share a mask.
        scale: Factor on the scores.
        PIECE: Tokens a block if a step gathers several blocks, 0 if lists are of runs.
        EXACT: Whether every run is of whole steps.
        STORED: Whether gradients of scores are stored. All heads of the group then share one list.
        WHOLE: Whether key blocks are of whole tiles.
    """
    head_kv, tile = program_of(order, num_tiles)
    keys, zeros, inside, block = packed_rows(tiles, tile, 1, BLOCK_N)
    row = tl.load(tiles + 4 * tile) + tl.load(tiles + 4 * tile + 2)
    k_head = head_offset(head_kv, stride_kh, TMA)
    v_head = head_offset(head_kv, stride_vh, TMA)
    k_block = load_tokens(k, row, keys, k_head, stride_kt, seqlen_k, HEAD_DIM, TMA)
    v_block = load_tokens(v, row, keys, v_head, stride_vt, seqlen_k, HEAD_DIM, TMA)

    dk_sum = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv_sum = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    for n in range(passes):
        head = head_kv * group + first_head + n
        first, count, num_steps = list_of(offsets, steps, head // heads_a_mask * num_lists + block)
        here = entries + (first if PIECE else 2 * first)
        first_row = tl.load(first_rows + head_kv * num_tiles + tile) if STORED else 0
        dk_sum, dv_sum = gather_dkdv_columns(
            k_block,
            v_block,
            dk_sum,
            dv_sum,
            q,
            dout,
            exponents,
            deltas,
            head,
            stride_qt,
            stride_qh,
            stride_gt,
            stride_gh,
            seqlen_q,
            padded_q,
            scale,
            Walk(here, count, num_steps, unit, seqlen_q, BLOCK_M, PIECE, EXACT),
            num_steps * repeats,
            first_head_state,
            head_columns,
            hide_nothing,
            advance_head,
            not EXACT or not VECTORS,
            TMA,
            VECTORS,
            Place(dscores, first_row, inside, WHOLE) if STORED else None,
            keep if STORED else keep_nothing,
        )

    heads = head_kv + zeros
    dk_sum *= scale
    if ADDS:
        dk_sum += load_packed(dk_sums, keys, heads, inside, stride_st, HEAD_DIM, HEAD_DIM)
        dv_sum += load_packed(dv_sums, keys, heads, inside, stride_st, HEAD_DIM, HEAD_DIM)
    store_packed(dk, keys, heads, inside, stride_dkt, stride_dkh, dk_sum)
    store_packed(dv, keys, heads, inside, stride_dvt, stride_dvh, dv_sum)
