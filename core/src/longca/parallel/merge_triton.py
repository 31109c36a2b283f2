"""The Triton kernels of `longca.parallel.merge`.

A program that merges takes some queries of one head. A program that adds takes some elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_into_on_cuda", "merge_into_on_cuda", "merge_parts_on_cuda"]

_ROWS = 32  # queries a program
_ELEMENTS = 2048  # elements a program


@triton.jit
def _merge_kernel(
    outs,
    lses,
    out,
    lse,
    num_queries,
    num_heads,
    outs_part,
    lses_part,
    out_token,
    out_head,
    lse_head,
    PARTS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    query = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = query < num_queries
    dim = tl.arange(0, BLOCK_D)
    inside = there[:, None] & (dim < HEAD_DIM)[None, :]
    lse_at = head * num_queries + query
    row = (query * num_heads + head) * HEAD_DIM

    most = tl.full([ROWS], float("-inf"), tl.float32)
    for part in tl.static_range(PARTS):
        mine = tl.load(lses + tl.full([], part, tl.int64) * lses_part + lse_at, mask=there, other=float("-inf"))
        most = tl.maximum(most, mine)
    base = tl.where(most == float("-inf"), 0.0, most)
    total = tl.zeros([ROWS], tl.float32)
    merged = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for part in tl.static_range(PARTS):
        mine = tl.load(lses + tl.full([], part, tl.int64) * lses_part + lse_at, mask=there, other=float("-inf"))
        weight = tl.exp(mine - base)
        total += weight
        value = tl.load(
            outs + tl.full([], part, tl.int64) * outs_part + row[:, None] + dim[None, :], mask=inside, other=0.0
        )
        # A part may have any value where a query sees nothing of it.
        merged += tl.where(weight[:, None] > 0, weight[:, None] * value.to(tl.float32), 0.0)
    merged = merged / tl.where(total > 0, total, 1.0)[:, None]
    at = query[:, None] * out_token + head * out_head + dim[None, :]
    tl.store(out + at, merged.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + head * lse_head + query, base + tl.log(total), mask=there)


def merge_parts_on_cuda(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merges parts into buffers. See `longca.parallel.merge.merge_parts`."""
    assert outs.is_contiguous()
    assert lses.is_contiguous()
    assert out.stride(-1) == 1
    assert lse.stride(-1) == 1
    parts, num_queries, num_heads, head_dim = outs.shape
    if not out.numel():
        return
    _merge_kernel[(triton.cdiv(num_queries, _ROWS), num_heads)](
        outs,
        lses,
        out,
        lse,
        num_queries,
        num_heads,
        outs.stride(0),
        lses.stride(0),
        out.stride(0),
        out.stride(1),
        lse.stride(0),
        PARTS=parts,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        ROWS=_ROWS,
    )


@triton.jit
def _merge_into_kernel(
    first,
    first_lse,
    second,
    second_lse,
    third,
    third_lse,
    out,
    lse,
    num_queries,
    num_heads,
    HAS_THIRD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    query = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = query < num_queries
    dim = tl.arange(0, BLOCK_D)
    inside = there[:, None] & (dim < HEAD_DIM)[None, :]
    lse_at = head * num_queries + query
    at = ((query * num_heads + head) * HEAD_DIM)[:, None] + dim[None, :]

    a = tl.load(first_lse + lse_at, mask=there, other=float("-inf"))
    b = tl.load(second_lse + lse_at, mask=there, other=float("-inf"))
    most = tl.maximum(a, b)
    if HAS_THIRD:
        c = tl.load(third_lse + lse_at, mask=there, other=float("-inf"))
        most = tl.maximum(most, c)
    base = tl.where(most == float("-inf"), 0.0, most)
    a = tl.exp(a - base)
    b = tl.exp(b - base)
    total = a + b
    # A part may have any value where a query sees nothing of it.
    value = tl.load(first + at, mask=inside, other=0.0).to(tl.float32)
    merged = tl.where(a[:, None] > 0, a[:, None] * value, 0.0)
    value = tl.load(second + at, mask=inside, other=0.0).to(tl.float32)
    merged += tl.where(b[:, None] > 0, b[:, None] * value, 0.0)
    if HAS_THIRD:
        c = tl.exp(c - base)
        total += c
        value = tl.load(third + at, mask=inside, other=0.0).to(tl.float32)
        merged += tl.where(c[:, None] > 0, c[:, None] * value, 0.0)
    merged = merged / tl.where(total > 0, total, 1.0)[:, None]
    # Warps may load the same lse; none stores into a part that another has yet to load.
    tl.debug_barrier()
    tl.store(out + at, merged.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + lse_at, base + tl.log(total), mask=there)


def merge_into_on_cuda(parts: Sequence[tuple[Tensor, Tensor]], into: tuple[Tensor, Tensor]) -> None:
    """Merges two or three parts, (out, lse) each, into buffers. All are contiguous, and a part may be the buffer."""
    assert 2 <= len(parts) <= 3
    assert all(x.is_contiguous() for part in (*parts, into) for x in part)
    out, lse = into
    if not out.numel():
        return
    num_queries, num_heads, head_dim = out.shape
    _merge_into_kernel[(triton.cdiv(num_queries, _ROWS), num_heads)](
        *parts[0],
        *parts[1],
        *parts[-1],
        out,
        lse,
        num_queries,
        num_heads,
        HAS_THIRD=len(parts) == 3,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        ROWS=_ROWS,
    )


@triton.jit
def _add_into_kernel(first, second, third, out, size, HAS_THIRD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    total = tl.load(first + at, mask=there).to(tl.float32) + tl.load(second + at, mask=there).to(tl.float32)
    if HAS_THIRD:
        total += tl.load(third + at, mask=there).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=there)


def add_into_on_cuda(parts: Sequence[Tensor], into: Tensor) -> None:
    """Adds two or three tensors up into a buffer. All are contiguous, and a tensor may be the buffer."""
    assert 2 <= len(parts) <= 3
    assert all(x.is_contiguous() for x in (*parts, into))
    if not into.numel():
        return
    _add_into_kernel[(triton.cdiv(into.numel(), _ELEMENTS),)](
        parts[0], parts[1], parts[-1], into, into.numel(), HAS_THIRD=len(parts) == 3, BLOCK=_ELEMENTS
    )
