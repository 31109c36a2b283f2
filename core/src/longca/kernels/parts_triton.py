"""The Triton kernel of `longca.kernels.parts`: one program merges some queries of one head."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["merge_parts_on_cuda"]

_ROWS = 32  # queries a program


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
        # A part that a query sees nothing of may hold anything.
        merged += tl.where(weight[:, None] > 0, weight[:, None] * value.to(tl.float32), 0.0)
    merged = merged / tl.where(total > 0, total, 1.0)[:, None]
    at = query[:, None] * out_token + head * out_head + dim[None, :]
    tl.store(out + at, merged.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + head * lse_head + query, base + tl.log(total), mask=there)


def merge_parts_on_cuda(outs: Tensor, lses: Tensor, out: Tensor, lse: Tensor) -> None:
    """Merges parts into buffers; see `longca.kernels.parts.merge_parts`."""
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
