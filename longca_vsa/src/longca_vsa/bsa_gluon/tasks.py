"""The tasks of bsa_gluon: a tile of 128 rows and the list of key blocks that it sees."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from longca_vsa.bsa_gluon.shape import PIECE

__all__ = ["PART", "STAGES", "STEP", "Shared", "Tasks", "task_of"]

#: Rows of a warp group, keys of a piece, and elements of half a head.
PART = gl.constexpr(PIECE)
#: Keys of a step: two pieces.
STEP = gl.constexpr(2 * PIECE)
#: Steps whose keys and values are there or on their way.
STAGES = gl.constexpr(2)


class Tasks(NamedTuple):
    """The plan's tables, and the mask's numbers.

    Attributes:
        order: The tasks in their order, as head · num_tiles + tile. A head is one of groups of PACKED heads: int32
            [num_tasks].
        tiles: First token and one past the last token of the tile's block, first row of the tile within the block, and
            the block: int32 [num_tiles, 4].
        entries: Lists of key blocks, one after another, in ascending order: uint16 or int32 [entries + 1].
        offsets: The begin of each query block's list, by mask head and block: int64 [mask heads · num_lists + 1].
        num_tasks: Tasks.
        num_tiles: Tiles.
        num_lists: Query blocks.
        heads_a_mask: Query heads that share a mask.
        unit: Pieces of a key block.
        seqlen_k: Keys.
    """

    order: Any
    tiles: Any
    entries: Any
    offsets: Any
    num_tasks: Any
    num_tiles: Any
    num_lists: Any
    heads_a_mask: Any
    unit: Any
    seqlen_k: Any


class Shared(NamedTuple):
    """Shared memory, and the barriers that say when it was written and when it was read.

    Attributes:
        q: Halves of the queries of two tiles, by tile, warp group and half: [8, 64, 64].
        k: Halves of the keys of each stage: [2 · stages, 128, 64].
        v: Halves of the values of each stage: [2 · stages, 128, 64].
        out: Halves of results, by warp group and half: [4, 64, 64].
        q_ready: Queries are there: one barrier for each tile and warp group.
        q_free: Queries were read: one for each tile and warp group.
        k_ready: Keys are there: one for each stage.
        k_free: Both warp groups read the keys: one for each stage.
        v_ready: Values are there: one for each stage.
        v_free: Both warp groups read the values: one for each stage.
        turns: A warp group may begin its products: one for each warp group.
    """

    q: Any
    k: Any
    v: Any
    out: Any
    q_ready: Any
    q_free: Any
    k_ready: Any
    k_free: Any
    v_ready: Any
    v_free: Any
    turns: Any


@gluon.jit
def task_of(tasks, task, PACKED: gl.constexpr):
    """A task's first token, first head, begin of its list, pieces of it, steps, and keys of its last piece."""
    work = gl.load(tasks.order + task)
    head = work // tasks.num_tiles * PACKED
    tile = tasks.tiles + 4 * (work % tasks.num_tiles)
    token = gl.load(tile) + gl.load(tile + 2) // PACKED
    place = head // tasks.heads_a_mask * tasks.num_lists + gl.load(tile + 3)
    first = gl.load(tasks.offsets + place)
    count = (gl.load(tasks.offsets + place + 1) - first).to(gl.int32)
    block = PART * tasks.unit
    last = gl.load(tasks.entries + first + gl.maximum(count - 1, 0)).to(gl.int32) * block
    keys = gl.minimum(block, tasks.seqlen_k - last)
    of_last = (keys + PART - 1) // PART
    pieces = gl.where(count > 0, (count - 1) * tasks.unit + of_last, 0)
    per_step: gl.constexpr = STEP // PART
    steps = gl.maximum((pieces + per_step - 1) // per_step, 1)  # a tile that sees nothing has a step too
    return token, head, first, pieces, steps, keys - (of_last - 1) * PART
