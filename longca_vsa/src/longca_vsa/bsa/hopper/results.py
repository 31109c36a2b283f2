"""Where a program's dk and dv go: the second warp group hands over its sums, and the first one writes all."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from longca_vsa.bsa.hopper.program import HEAD, PART, WIDE

__all__ = ["Results", "hand_over", "write"]


class Results(NamedTuple):
    """The tensors of dk and dv, and the sums of earlier launches for them. See `dkdv.gather_dkdv`."""

    dk_sums: Any
    dv_sums: Any
    dk: Any
    dv: Any
    stride_st: Any
    stride_sh: Any
    stride_dkt: Any
    stride_dkh: Any
    stride_dvt: Any
    stride_dvh: Any


@gluon.jit
def hand_over(shared, dk, dv):
    """Hands over the sums of a warp group, dv first."""
    shared.sums.store(dv)
    mbarrier.arrive(shared.sums_ready.index(0))
    mbarrier.wait(shared.sums_free.index(0), 0)
    shared.sums.store(dk)
    mbarrier.arrive(shared.sums_ready.index(1))


@gluon.jit
def write(shared, results, program, dk, dv, scale, ADDS: gl.constexpr):
    """Writes dk and dv: own sums, those that the other warp group hands over, and those of earlier launches."""
    earlier = _offsets(program, results.stride_st, results.stride_sh)
    mbarrier.wait(shared.sums_ready.index(0), 0)
    dv += shared.sums.load(WIDE)
    mbarrier.arrive(shared.sums_free.index(0))
    if ADDS:
        dv += gl.load(results.dv_sums + earlier)
    target = results.dv + _offsets(program, results.stride_dvt, results.stride_dvh)
    gl.store(target, dv.to(target.dtype.element_ty))
    mbarrier.wait(shared.sums_ready.index(1), 0)
    dk = (dk + shared.sums.load(WIDE)) * scale
    if ADDS:
        dk += gl.load(results.dk_sums + earlier)
    target = results.dk + _offsets(program, results.stride_dkt, results.stride_dkh)
    gl.store(target, dk.to(target.dtype.element_ty))


@gluon.jit
def _offsets(program, stride_t, stride_h):
    """Elements from the start of a tensor to the program's keys: int64 [PART, HEAD]."""
    rows = gl.arange(0, PART, gl.SliceLayout(1, WIDE))
    columns = gl.arange(0, HEAD, gl.SliceLayout(0, WIDE))
    first = program.key.to(gl.int64) * stride_t + program.head_kv.to(gl.int64) * stride_h
    return first + rows[:, None].to(gl.int64) * stride_t + columns[None, :]
