"""The rows of a program of bsa: its tile, and loading and storing the tile's rows.

A row of the forward and of dq is a query under one head. If the query heads of a group share their mask, row r of a
block is query r // packed under head r % packed. A block of a few tokens then fills a tile too. Rows are keys for dk
and dv.
"""

import triton
import triton.language as tl

__all__ = ["load_packed", "packed_rows", "program_of", "store_packed"]


@triton.jit
def program_of(order, num_tiles):
    """The head, or group of packed heads, and the tile of this program."""
    program = tl.load(order + tl.program_id(0))
    return program // num_tiles, program % num_tiles


@triton.jit
def packed_rows(tiles, tile, packed, BLOCK: tl.constexpr):
    """The tokens of a tile's rows, their heads counted from the program's first, whether the block has each row, the
    block.

    The loads are volatile, so that a call after the loop computes everything again. Values kept over the loop would
    take registers from the accumulators.

    Args:
        tiles: First token and one past the last token of the tile's block, first row of the tile within the block, and
            the block: int32 [tiles, 4].
        tile: The tile.
        packed: Heads a token.
    """
    entry = tiles + 4 * tile
    rows = tl.load(entry + 2, volatile=True) + tl.arange(0, BLOCK)
    tokens = tl.load(entry, volatile=True) + rows // packed
    return tokens, rows % packed, tokens < tl.load(entry + 1, volatile=True), tl.load(entry + 3)


@triton.jit
def packed_offsets(tokens, heads, stride_t, stride_h, HEAD_DIM: tl.constexpr):
    """Elements from a tensor's start to each of a tile's rows: int64 [BLOCK, HEAD_DIM]."""
    rows = tokens.to(tl.int64) * stride_t + heads.to(tl.int64) * stride_h
    return rows[:, None] + tl.arange(0, HEAD_DIM)[None, :]


@triton.jit
def load_packed(source, tokens, heads, inside, stride_t, stride_h, HEAD_DIM: tl.constexpr):
    """The rows of a tile: [BLOCK, HEAD_DIM], zeros outside its block."""
    offsets = packed_offsets(tokens, heads, stride_t, stride_h, HEAD_DIM)
    return tl.load(source + offsets, mask=inside[:, None], other=0.0)


@triton.jit
def store_packed(target, tokens, heads, inside, stride_t, stride_h, block):
    """Writes the rows of a tile [BLOCK, HEAD_DIM] that its block has, in the target's dtype."""
    offsets = packed_offsets(tokens, heads, stride_t, stride_h, block.shape[1])
    tl.store(target + offsets, block.to(target.dtype.element_ty), mask=inside[:, None])
