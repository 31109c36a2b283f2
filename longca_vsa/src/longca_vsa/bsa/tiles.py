"""What the Triton kernels of both directions share: which rows a program has, and the columns that it walks over.

A program has a tile of rows and takes columns a step at a time; in the forward and for dq rows are queries and columns
keys, for dk and dv it is the other way round. A row of the forward is a query of one head: where the query heads of a
group share their mask, row r of a block is query r // packed under head r % packed, so that a block of a few tokens
fills a tile all the same.

The columns of a row block come as a list, in one of two kinds (see `lists.py`):

- *runs* of neighbouring blocks that are kept, as (first, one past the last) in units of `unit` tokens. A step is the
  next consecutive columns of a run, from wherever that begins; where the run ends within the step, the rest is masked.
- blocks of PIECE tokens, fewer than a step takes: a step gathers several, from wherever they lie.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

import triton
import triton.language as tl

from longca_triton.tiles import head_offset

__all__ = [
    "first_run",
    "list_of",
    "load_packed",
    "load_vector",
    "next_run",
    "packed_rows",
    "piece_columns",
    "program_of",
    "store_packed",
]


@triton.jit
def program_of(order, num_tiles):
    """The head, or group of packed heads, and the tile of this program."""
    program = tl.load(order + tl.program_id(0))
    return program // num_tiles, program % num_tiles


@triton.jit
def packed_rows(tiles, tile, packed, BLOCK: tl.constexpr):
    """Token and head, counted from the program's first, of each row of a tile; which of them the block has; the block.

    The loads are volatile so that a call after the loop computes all of it anew: kept over the loop, it would take
    registers that accumulators need.

    Args:
        tiles: First token and one past the last token of the tile's block, first row of the tile within the block, and
            the block: int32 [tiles, 4].
        tile: Which tile.
        packed: Heads a token.
    """
    entry = tiles + 4 * tile
    rows = tl.load(entry + 2, volatile=True) + tl.arange(0, BLOCK)
    tokens = tl.load(entry, volatile=True) + rows // packed
    return tokens, rows % packed, tokens < tl.load(entry + 1, volatile=True), tl.load(entry + 3)


@triton.jit
def list_of(offsets, steps, row):
    """Where a row's list begins, how many entries it has, and how many steps they make."""
    first = tl.load(offsets + row)
    return first, (tl.load(offsets + row + 1) - first).to(tl.int32), tl.load(steps + row)


@triton.jit
def load_run(runs, index):
    """A run's bounds as they are stored."""
    return tl.load(runs + 2 * index), tl.load(runs + 2 * index + 1)


@triton.jit
def run_columns(start, stop, unit, length):
    """First column of a run, and one past its last, from its bounds as they are stored."""
    return start.to(tl.int32) * unit, tl.minimum(stop.to(tl.int32) * unit, length)


@triton.jit
def first_run(runs, count, unit, length):
    """The state of a walk over a list of runs at its first step.

    The run after the present one is loaded already, and nothing is done to its bounds until it begins, so that no step
    waits for a load; after the last run comes the first.

    Returns:
        First column of the step, one past the last column of its run; the bounds of the run to come, and its index.
    """
    start, stop = load_run(runs, 0)
    column, stop = run_columns(start, stop, unit, length)
    index = (count > 1).to(tl.int32)
    next_start, next_stop = load_run(runs, index)
    return column, stop, next_start, next_stop, index


@triton.jit
def next_run(runs, count, unit, length, column, stop, next_start, next_stop, index, BLOCK: tl.constexpr):
    """The state after one more step, and whether the list begins anew: 1 or 0."""
    column += BLOCK
    is_over = column >= stop
    is_last = is_over & (index == 0)
    next_column, last_column = run_columns(next_start, next_stop, unit, length)
    column = tl.where(is_over, next_column, column)
    stop = tl.where(is_over, last_column, stop)
    index += is_over.to(tl.int32)
    index = tl.where(index == count, 0, index)
    next_start, next_stop = load_run(runs, index)
    return column, stop, next_start, next_stop, index, is_last.to(tl.int32)


@triton.jit
def piece_columns(blocks, count, step, length, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    """The columns that a step gathers from BLOCK // PIECE blocks, `length` where there are no more of them: [BLOCK]."""
    each = tl.arange(0, BLOCK)
    index = step * (BLOCK // PIECE) + each // PIECE
    block = tl.load(blocks + index, mask=index < count, other=0).to(tl.int32)
    return tl.where(index < count, block * PIECE + each % PIECE, length)


@triton.jit
def load_vector(
    source, head, column, columns, padded, stop, OTHER: tl.constexpr, EXACT: tl.constexpr, TMA: tl.constexpr
):
    """One number for each of some tokens, of one head of a float32 [heads, padded]: [BLOCK], OTHER from `stop` on.

    By a descriptor, values land in shared memory, from where each thread takes what its scores need; by pointers every
    thread would copy for itself. Where EXACT is set, no token is past `stop`.
    """
    if TMA:
        values = tl.reshape(source.load([head, column]), [columns.shape[0]])
        if not EXACT:
            values = tl.where(columns < stop, values, OTHER)
    else:
        values = tl.load(source + head_offset(head, padded, False) + columns, mask=columns < stop, other=OTHER)
    return values


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
