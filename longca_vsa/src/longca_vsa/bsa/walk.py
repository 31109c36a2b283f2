"""The walk of a program of bsa: the columns that the list of its block of rows names.

The columns of a block of rows come as a list (see `lists.py`), of one of two kinds:

- *runs* of neighbouring blocks that are kept, as (first, one past the last) in units of `unit` tokens. A step takes the
  next consecutive columns of a run, from any first column. If the run ends within the step, the rest is masked.
- blocks of PIECE tokens, fewer than the columns of a step. A step gathers several blocks, wherever they lie.

`longca_triton.loops` calls the functions of a walk. Its state is the first column of the step, one past the last column
of its run, the bounds of the run to come, and that run's index. Blocks need no state.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

__all__ = [
    "Walk",
    "advance",
    "advance_head",
    "columns_of",
    "first_head_state",
    "first_state",
    "head_columns",
    "hide",
    "list_of",
]


class Walk(NamedTuple):
    """The constant part of a walk.

    Attributes:
        entries: The list of the block of rows: runs or blocks.
        count: Entries of the list.
        num_steps: Steps that the list makes.
        unit: Tokens a unit of a run's bounds.
        length: Columns of the mask.
        BLOCK: Columns a step.
        PIECE: Tokens a block if entries are blocks, 0 if they are runs.
        EXACT: Whether every run is of whole steps.
    """

    entries: Any
    count: Any
    num_steps: Any
    unit: Any
    length: Any
    BLOCK: Any
    PIECE: Any
    EXACT: Any


@triton.jit
def list_of(offsets, steps, row):
    """The begin of a row's list, its number of entries, and its number of steps."""
    first = tl.load(offsets + row)
    return first, (tl.load(offsets + row + 1) - first).to(tl.int32), tl.load(steps + row)


@triton.jit
def first_state(walk):
    """The state at the first step of a list.

    The run to come is loaded already, and its bounds stay as they are until it begins. So no step waits for a load. The
    first run follows the last.
    """
    column, stop, next_start, next_stop, index = 0, walk.length, 0, 0, 0
    if walk.PIECE == 0:
        start, stop = load_run(walk, 0)
        column, stop = run_columns(walk, start, stop)
        index = (walk.count > 1).to(tl.int32)
        next_start, next_stop = load_run(walk, index)
    return column, stop, next_start, next_stop, index


@triton.jit
def first_head_state(walk):
    """The state of a walk that repeats its list for each head: the step within the list, and the state of a walk."""
    return 0, first_state(walk)


@triton.jit
def columns_of(walk, state, step):
    """The first column of a step, all of its columns, and one past the last column of its run."""
    columns = piece_columns(walk, step) if walk.PIECE else state[0] + tl.arange(0, walk.BLOCK)
    return state[0], columns, state[1]


@triton.jit
def head_columns(walk, state, step):
    """The same for a state of `advance_head`."""
    return columns_of(walk, state[1], state[0])


@triton.jit
def hide(walk, state, step, columns, values, other):
    """Replaces the values of columns that are not the walk's."""
    if walk.PIECE:
        # Blocks ascend. So only the last step can have fewer blocks, or the block that the sequence's end cuts short.
        if step == walk.num_steps - 1:
            values = tl.where(columns[None, :] < walk.length, values, other)
    elif not walk.EXACT:
        if state[0] + walk.BLOCK > state[1]:
            values = tl.where(columns[None, :] < state[1], values, other)
    return values


@triton.jit
def advance(walk, state):
    """The state at the next step."""
    if walk.PIECE == 0:
        state, _ = next_run(walk, state)
    return state


@triton.jit
def advance_head(walk, state):
    """The step within the list and the state, after one more step, and whether the list begins anew: 1 or 0."""
    step, place = state
    if walk.PIECE:
        step += 1
        is_last = (step == walk.num_steps).to(tl.int32)
        step = tl.where(step == walk.num_steps, 0, step)
    else:
        place, is_last = next_run(walk, place)
    return (step, place), is_last


@triton.jit
def load_run(walk, index):
    """A run's bounds as they are stored."""
    return tl.load(walk.entries + 2 * index), tl.load(walk.entries + 2 * index + 1)


@triton.jit
def run_columns(walk, start, stop):
    """First column of a run, and one past its last, from its bounds as they are stored."""
    return start.to(tl.int32) * walk.unit, tl.minimum(stop.to(tl.int32) * walk.unit, walk.length)


@triton.jit
def next_run(walk, state):
    """The state after one more step over runs, and whether the list begins anew: 1 or 0."""
    column, stop, next_start, next_stop, index = state
    column += walk.BLOCK
    is_over = column >= stop
    is_last = is_over & (index == 0)
    next_column, last_column = run_columns(walk, next_start, next_stop)
    column = tl.where(is_over, next_column, column)
    stop = tl.where(is_over, last_column, stop)
    index += is_over.to(tl.int32)
    index = tl.where(index == walk.count, 0, index)
    next_start, next_stop = load_run(walk, index)
    return (column, stop, next_start, next_stop, index), is_last.to(tl.int32)


@triton.jit
def piece_columns(walk, step):
    """The columns that a step gathers from BLOCK // PIECE blocks: [BLOCK]. Past the last block they are `length`."""
    each = tl.arange(0, walk.BLOCK)
    index = step * (walk.BLOCK // walk.PIECE) + each // walk.PIECE
    block = tl.load(walk.entries + index, mask=index < walk.count, other=0).to(tl.int32)
    return tl.where(index < walk.count, block * walk.PIECE + each % walk.PIECE, walk.length)
