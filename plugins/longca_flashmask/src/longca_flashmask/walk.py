"""The walk of a program of flashmask: the tiles of its block of rows, and the hidden pairs of a tile.

A tile is a block of rows against a block of columns. `tables.py` lists *runs* of column blocks for each block of rows.
A run is its first block and a code: twice its last block + 1, odd if the run's tiles are partly masked. A walk's state
is its run, its block, and its run's code. `longca_triton.loops` calls the functions `columns_of`, `hide` and `advance`.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

__all__ = ["Walk", "advance", "advance_head", "columns_of", "first_state", "hide", "load_intervals", "state_at"]


class Walk(NamedTuple):
    """The constant part of a walk.

    Attributes:
        runs: Runs of column blocks: int32 [runs + 1, 2].
        firsts: First column of each row's intervals: a tuple of vectors [rows].
        lasts: One past its last column: a tuple of vectors [rows].
        BLOCK: Columns a tile.
        PLAIN: Whether each block of rows sees one run of column blocks, all of it.
        first: The state at the first tile.
        last_run: One past the last run.
    """

    runs: Any
    firsts: Any
    lasts: Any
    BLOCK: Any
    PLAIN: Any
    first: Any
    last_run: Any


@triton.jit
def state_at(runs, run):
    """The state at the first tile of a run."""
    return run, tl.load(runs + 2 * run), tl.load(runs + 2 * run + 1)


@triton.jit
def first_state(walk):
    """The state at the first tile of the walk."""
    return walk.first


@triton.jit
def columns_of(walk, state, step):
    """The columns of the present tile. No column needs a bound: `hide` covers the columns past the end."""
    column = state[1] * walk.BLOCK
    columns = column + tl.arange(0, walk.BLOCK)
    return column, columns, column


@triton.jit
def hide(walk, state, step, columns, values, other):
    """Replaces the values at hidden pairs, in partly masked tiles."""
    if not walk.PLAIN:
        if state[2] & 1:
            values = tl.where(visible(walk, state[1] * walk.BLOCK + tl.arange(0, walk.BLOCK)), values, other)
    return values


@triton.jit
def advance(walk, state):
    """The state at the next tile. The table ends with a run that no program enters.

    If PLAIN is set each block of rows has one run, and no tile waits for the table.
    """
    run, block, code = state
    block += 1
    if not walk.PLAIN:
        is_over = block == code >> 1
        run += is_over.to(tl.int32)
        block = tl.load(walk.runs + 2 * run, mask=is_over, other=block)
        code = tl.load(walk.runs + 2 * run + 1, mask=is_over, other=code)
    return run, block, code


@triton.jit
def advance_head(walk, state):
    """The state at the next tile, and 1 if the walk begins again for the next head, else 0."""
    run, block, code = advance(walk, state)
    is_last = run == walk.last_run
    run = tl.where(is_last, walk.first[0], run)
    block = tl.where(is_last, walk.first[1], block)
    code = tl.where(is_last, walk.first[2], code)
    return (run, block, code), is_last.to(tl.int32)


@triton.jit
def load_intervals(starts, stops, rows, num_rows, COUNT: tl.constexpr):
    """Each row's intervals, as two tuples of COUNT vectors. Rows past the end see nothing."""
    firsts = ()
    lasts = ()
    for n in tl.static_range(COUNT):
        offset = n * num_rows.to(tl.int64)
        # Triton has no unpacking in tuples.
        firsts = firsts + (tl.load(starts + offset + rows, mask=rows < num_rows, other=0),)  # type: ignore[assignment]
        lasts = lasts + (tl.load(stops + offset + rows, mask=rows < num_rows, other=0),)  # type: ignore[assignment]
    return firsts, lasts


@triton.jit
def visible(walk, columns):
    """Whether each column lies in an interval of each row: bool [rows, columns]."""
    columns = columns[None, :]
    seen = (columns >= walk.firsts[0][:, None]) & (columns < walk.lasts[0][:, None])
    for n in tl.static_range(1, len(walk.firsts)):
        seen = seen | ((columns >= walk.firsts[n][:, None]) & (columns < walk.lasts[n][:, None]))
    return seen
