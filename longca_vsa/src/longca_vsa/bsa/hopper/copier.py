"""The warp that copies: a program's keys and values, and the queries of each step, by the tensor memory accelerator."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from longca_vsa.bsa.hopper.program import HEAD, PART, STAGES
from longca_vsa.gluon import load

__all__ = ["NOWHERE", "Strides", "copy_all"]

#: A row past the end of every tensor. The accelerator brings zeros from there, and writes nothing to it.
NOWHERE = gl.constexpr(2**31 - 256)


class Strides(NamedTuple):
    """Elements from a head to the next."""

    q: Any
    k: Any
    v: Any
    dout: Any


@gluon.jit
def _copy_step(q, dout, exponents, deltas, strides, shared, at, row, head):
    stage = at % STAGES
    ready = shared.ready.index(stage)
    mbarrier.wait(shared.free.index(stage), at // STAGES % 2 ^ 1)
    mbarrier.expect(ready, 2 * PART * HEAD * 2 + 2 * PART * 4)
    load(q, [row, head * strides.q], ready, shared.q.index(stage))
    load(exponents, [head, row], ready, shared.exponents.index(stage))
    load(dout, [row, head * strides.dout], ready, shared.dout.index(stage))
    load(deltas, [head, row], ready, shared.deltas.index(stage))


@gluon.jit
def copy_all(q, k, v, dout, exponents, deltas, strides, shared, program):
    """Brings the program's keys and values, and the queries of all steps, one head after another.

    Programs that run side by side then share the queries of a head in the L2 cache. Both warp groups have as many
    steps: the last one may be of zeros, which add nothing to dk and dv.

    The tensors are descriptors, see `dkdv.gather_dkdv`.
    """
    ready = shared.kv_ready.index(0)
    mbarrier.expect(ready, 2 * PART * HEAD * 2)
    load(k, [program.key, program.head_kv * strides.k], ready, shared.k)
    load(v, [program.key, program.head_kv * strides.v], ready, shared.v)
    at = 0
    for head in range(program.heads):
        for run in range(program.runs):
            begin = gl.load(program.entries + 2 * run).to(gl.int32) * program.unit
            end = gl.load(program.entries + 2 * run + 1).to(gl.int32) * program.unit
            for row in range(begin, end, PART):
                _copy_step(q, dout, exponents, deltas, strides, shared, at, row, program.head + head)
                at += 1
    if at % 2 == 1:
        _copy_step(q, dout, exponents, deltas, strides, shared, at, NOWHERE, program.head)
