"""The work of a program of the kernel for Hopper: a tile of 64 keys, the queries that see it, and shared memory."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["HEAD", "PART", "STAGES", "TILE", "WIDE", "Program", "Shared", "program_of"]

#: Keys of a program, and queries of a step.
PART = gl.constexpr(64)
#: Elements of a head.
HEAD = gl.constexpr(128)
#: Steps whose queries are there or on their way.
STAGES = gl.constexpr(4)
#: The layout of scores, keys by queries.
TILE = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))
#: The layout of dk and dv.
WIDE = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16]))


class Program(NamedTuple):
    """A program's keys, and the list of queries that see them. All query heads that it takes share the list.

    Attributes:
        key: The first key.
        head_kv: The KV head.
        head: The first query head.
        heads: Query heads.
        entries: Runs of query blocks, as (first, one past the last): [runs, 2].
        runs: Runs.
        unit: Tokens a query block.
        steps: Steps of the list, of PART queries each.
        first_row: The first row of its gradients of scores. A step has PART rows, and a head has PART columns.
    """

    key: Any
    head_kv: Any
    head: Any
    heads: Any
    entries: Any
    runs: Any
    unit: Any
    steps: Any
    first_row: Any


class Shared(NamedTuple):
    """Shared memory, and the barriers that say when it was written and when it was read.

    Attributes:
        k: The keys: [64, 128].
        v: The values: [64, 128].
        q: The queries of each stage: [stages, 64, 128].
        dout: The output's gradients of each stage: [stages, 64, 128].
        exponents: float32 [stages, 1, 64].
        deltas: float32 [stages, 1, 64].
        dscores: Gradients of scores, by warp group: [2, 64, 64].
        sums: The second warp group's dv, and then its dk: float32 [64, 128].
        kv_ready: Keys and values are there.
        ready: A stage is there: one barrier for each.
        free: A stage was read: one for each.
        turns: A warp group may begin its products: one for each warp group.
        sums_ready: The second warp group's dv are there, and its dk.
        sums_free: Its dv were read.
    """

    k: Any
    v: Any
    q: Any
    dout: Any
    exponents: Any
    deltas: Any
    dscores: Any
    sums: Any
    kv_ready: Any
    ready: Any
    free: Any
    turns: Any
    sums_ready: Any
    sums_free: Any


@gluon.jit
def program_of(
    order,
    tiles,
    entries,
    offsets,
    steps,
    first_rows,
    num_tiles,
    num_lists,
    unit,
    first_head,
    heads,
    group,
    heads_a_mask,
):
    """The work of this program. The arguments are those of `dkdv.gather_dkdv`."""
    work = gl.load(order + gl.program_id(0))
    head_kv = work // num_tiles
    tile = tiles + 4 * (work % num_tiles)
    key = gl.load(tile) + gl.load(tile + 2)
    head = head_kv * group + first_head
    place = head // heads_a_mask * num_lists + gl.load(tile + 3)
    first = gl.load(offsets + place)
    runs = (gl.load(offsets + place + 1) - first).to(gl.int32)
    return Program(
        key,
        head_kv,
        head,
        heads,
        entries + 2 * first,
        runs,
        unit,
        gl.load(steps + place),
        gl.load(first_rows + work),
    )
