"""Stored gradients of scores: the kernel of dk and dv stores them, and dq is their product with the keys.

A backward by two kernels without stored gradients computes the scores and their gradients twice, which is seven matrix
products instead of five. Stored gradients take 2 bytes a pair, 4 times less than an addition to dq in float32, and no
program adds to another program's results.

A launch of dk and dv stores the gradients of some heads of each group, and a launch of dq multiplies them with the
keys. The store is a matrix [rows · heads, BLOCK_N]. A row is a query under one head, for one tile of keys, and has a
column for each key. The rows of a tile of keys are those of its list's steps, one after another. See `score_tables.py`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from longca_triton.tiles import head_offset, load_tokens
from longca_vsa.bsa.rows import packed_rows, program_of, store_packed

__all__ = ["Place", "keep", "multiply_dscores"]


class Place(NamedTuple):
    """The place of the gradients that a program of dk and dv stores.

    Attributes:
        target: Their descriptor: [rows, heads · BLOCK_N], with blocks of [BLOCK_M, BLOCK_N].
        first_row: The row of the first step.
        inside: Whether the block has each key of the tile: [BLOCK_N].
        WHOLE: Whether it has all of them in every tile.
    """

    target: Any
    first_row: Any
    inside: Any
    WHOLE: Any


@triton.jit
def keep(place, walk, step, dscores):
    """Stores the gradients of a step's scores [BLOCK_N, BLOCK_M]. Keys past their block's end get zeros."""
    if not place.WHOLE:
        dscores = tl.where(place.inside[:, None], dscores, 0.0)
    repeat = step // walk.num_steps
    row = place.first_row + (step - repeat * walk.num_steps) * walk.BLOCK
    place.target.store([row, repeat * dscores.shape[0]], tl.trans(dscores))


@triton.jit(do_not_specialize=["num_tiles", "num_lists", "first_head", "group", "heads_a_mask", "scale", "seqlen_k"])
def multiply_dscores(
    dscores,
    k,
    dq,
    order,
    tiles,
    entries,
    offsets,
    first_rows,
    stride_kt,
    stride_kh,
    stride_dqt,
    stride_dqh,
    num_tiles,
    num_lists,
    first_head,
    group,
    heads_a_mask,
    scale,
    seqlen_k,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACKED: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: dq of a tile of BLOCK_M rows, queries of one block under PACKED heads of one KV head.

    Args:
        dscores: The descriptor of the store: [rows · PACKED, BLOCK_N], with blocks of [BLOCK_M, BLOCK_N].
        k: [Tk, Hkv, HEAD_DIM]. A descriptor if TMA is set, else a pointer.
        dq: [Tq, Hq, HEAD_DIM], written.
        order: The KV head and the tile of each program: int32 [programs].
        tiles: Tiles of queries, as `packed_rows` takes them: int32 [tiles, 4].
        entries: For each query block and tile of keys that it sees, the tile's first key, and the row of the block's
            first query there, counted from the head's first row: int32 [entries + 1, 2].
        offsets: The begin of each query block's entries, by mask head and block: int64 [mask heads · num_lists + 1].
        first_rows: The first row of each KV head: int32 [Hkv].
        num_tiles: Tiles of queries.
        num_lists: Query blocks.
        first_head: The first head of its group that the program takes.
        group: Query heads a KV head.
        heads_a_mask: Query heads that share a mask.
        scale: Factor on the scores.
    """
    head_kv, tile = program_of(order, num_tiles)
    head = head_kv * group + first_head
    block = tl.load(tiles + 4 * tile + 3)
    row_list = head // heads_a_mask * num_lists + block
    first = tl.load(offsets + row_list)
    count = (tl.load(offsets + row_list + 1) - first).to(tl.int32)
    first_row = tl.load(first_rows + head_kv) * PACKED + tl.load(tiles + 4 * tile + 2)
    k_offset = head_offset(head_kv, stride_kh, TMA)
    entry = entries + 2 * first
    key, row = tl.load(entry), tl.load(entry + 1)
    dq_sum = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for _ in range(count):
        dscores_block = dscores.load([first_row + row * PACKED, 0])
        k_block = load_tokens(k, key, key + tl.arange(0, BLOCK_N), k_offset, stride_kt, seqlen_k, HEAD_DIM, TMA)
        dq_sum = tl.dot(dscores_block, k_block, dq_sum)
        entry += 2
        key, row = tl.load(entry), tl.load(entry + 1)  # of the next step, which does not wait for them

    tokens, heads, inside, _ = packed_rows(tiles, tile, PACKED, BLOCK_M)
    store_packed(dq, tokens, heads + head, inside, stride_dqt, stride_dqh, dq_sum * scale)
