"""What the Triton kernels of both directions share: loading tiles, walking a table of tiles, masking a tile.

A tile is a block of rows against a block of columns; in the forward rows are queries and columns keys, in the kernel of
dk and dv it is the other way round. Each program has one block of rows, and walks the *runs* of column blocks that
`tables.py` lists for it: a run is its first block and a code, twice its last block + 1, odd where the run's tiles are
partly masked.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators, no-check-untyped-defs

import triton
import triton.language as tl

from longca_triton.tiles import head_offset, load_tokens

__all__ = [
    "first_tile",
    "load_intervals",
    "load_rows",
    "load_vector",
    "next_tile",
    "store_rows",
    "visible",
]


@triton.jit
def load_rows(source, row, column, stride, length, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    """Rows `row` … `row` + BLOCK of one head: [BLOCK, HEAD_DIM], zeros from `length` on.

    Args:
        source: The tensor's descriptor where TMA is set, else its pointer.
        row: First row.
        column: What `head_offset` gave.
        stride: Elements from a row to the next.
        length: Rows of the tensor.
    """
    tokens = row + tl.arange(0, BLOCK)
    return load_tokens(source, row, tokens, column, stride, length, HEAD_DIM, TMA)


@triton.jit
def load_vector(source, head, column, padded, BLOCK: tl.constexpr, TMA: tl.constexpr):
    """Elements `column` … `column` + BLOCK of one head of a float32 [heads, padded]: a descriptor or a pointer.

    A descriptor lets the values land in shared memory, from where each thread takes what its scores need; by pointers
    every thread would copy for itself.
    """
    if TMA:
        values = tl.reshape(source.load([head, column]), [BLOCK])
    else:
        values = tl.load(source + head_offset(head, padded, False) + column + tl.arange(0, BLOCK))
    return values


@triton.jit
def store_rows(target, row, start, stride, length, block):
    """Writes a block [BLOCK, HEAD_DIM] to rows `row` … of one head, in the target's dtype, up to row `length`."""
    rows = row + tl.arange(0, block.shape[0])
    offsets = rows.to(tl.int64)[:, None] * stride + tl.arange(0, block.shape[1])[None, :]
    tl.store(target + start + offsets, block.to(target.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def first_tile(runs, run):
    """The first block of a run, and the run's code."""
    return tl.load(runs + 2 * run), tl.load(runs + 2 * run + 1)


@triton.jit
def next_tile(runs, run, block, code, PLAIN: tl.constexpr):
    """The run, block and code that come next; the table ends with a run that is never entered.

    Where PLAIN is set each row has one run, so that no tile has to wait for what the table says.
    """
    block += 1
    if not PLAIN:
        is_over = block == code >> 1
        run += is_over.to(tl.int32)
        block = tl.load(runs + 2 * run, mask=is_over, other=block)
        code = tl.load(runs + 2 * run + 1, mask=is_over, other=code)
    return run, block, code


@triton.jit
def load_intervals(starts, stops, rows, num_rows, COUNT: tl.constexpr):
    """Each row's intervals, as two tuples of COUNT vectors; rows past the end see nothing."""
    firsts = ()
    lasts = ()
    for n in tl.static_range(COUNT):
        offset = n * num_rows.to(tl.int64)
        # Triton has no unpacking in tuples.
        firsts = firsts + (tl.load(starts + offset + rows, mask=rows < num_rows, other=0),)  # type: ignore[assignment]
        lasts = lasts + (tl.load(stops + offset + rows, mask=rows < num_rows, other=0),)  # type: ignore[assignment]
    return firsts, lasts


@triton.jit
def visible(firsts, lasts, columns, COUNT: tl.constexpr):
    """Which of some columns lie in the rows' intervals: bool [rows, columns]."""
    columns = columns[None, :]
    seen = (columns >= firsts[0][:, None]) & (columns < lasts[0][:, None])
    for n in tl.static_range(1, COUNT):
        seen = seen | ((columns >= firsts[n][:, None]) & (columns < lasts[n][:, None]))
    return seen
