"""The Triton kernels of `longca.kernels.sinks`. Each passes over its tensors once.

A program takes some queries of some heads, which lie side by side in memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_sinks_on_cuda", "sinks_gradient_on_cuda"]

_QUERIES = tl.constexpr(16)  # queries a program
_ELEMENTS = 512  # elements of a query, for a program


@triton.jit
def _places(num_queries, num_heads, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr):
    """A program's heads, its places in [Hq, Tq] and in [Tq, Hq, D], and whether there are such places."""
    blocks = tl.cdiv(num_heads, HEADS)
    query = tl.program_id(0).to(tl.int64) // blocks * _QUERIES + tl.arange(0, _QUERIES)[:, None]
    head = tl.program_id(0).to(tl.int64) % blocks * HEADS + tl.arange(0, HEADS)[None, :]
    dim = tl.arange(0, BLOCK_D)[None, None, :]
    there = (query < num_queries) & (head < num_heads)
    at = (query * num_heads + head)[:, :, None] * HEAD_DIM + dim
    return head, head * num_queries + query, there, at, there[:, :, None] & (dim < HEAD_DIM)


@triton.jit
def _add_kernel(
    out, lse, sinks, whole, num_queries, num_heads, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr
):
    head, row, there, at, inside = _places(num_queries, num_heads, HEAD_DIM, BLOCK_D, HEADS)
    value = tl.load(out + at, mask=inside, other=0.0)
    own = tl.load(lse + row, mask=there, other=float("-inf"))
    sink = tl.load(sinks + head, mask=head < num_heads, other=float("-inf")).to(tl.float32)
    most = tl.maximum(own, sink)
    base = tl.where(most == float("-inf"), 0.0, most)
    share = tl.exp(own - base)
    total = share + tl.exp(sink - base)
    share = share / tl.where(total > 0, total, 1.0)
    tl.store(out + at, (value.to(tl.float32) * share[:, :, None]).to(out.dtype.element_ty), mask=inside)
    tl.store(whole + row, base + tl.log(total), mask=there)


def add_sinks_on_cuda(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """See `longca.kernels.sinks.add_sinks`. out and lse, which is float32, are contiguous."""
    whole = torch.empty_like(lse)
    if out.numel():
        grid, sizes = _launch(out)
        _add_kernel[grid](out, lse, sinks.contiguous(), whole, *out.shape[:2], **sizes)
    return out, whole


@triton.jit
def _gradient_kernel(
    dout,
    out,
    lse,
    sinks,
    sums,
    num_queries,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS: tl.constexpr,
):
    head, row, there, at, inside = _places(num_queries, num_heads, HEAD_DIM, BLOCK_D, HEADS)
    gradient = tl.load(dout + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    whole = tl.load(lse + row, mask=there, other=float("-inf"))
    sink = tl.load(sinks + head, mask=head < num_heads, other=float("-inf")).to(tl.float32)
    weight = tl.where(whole == float("-inf"), 0.0, tl.exp(sink - whole))
    part = tl.sum(weight * tl.sum(gradient * value, axis=2), axis=0)[None, :]
    block = tl.program_id(0).to(tl.int64) // tl.cdiv(num_heads, HEADS)
    tl.store(sums + block * num_heads + head, -part, mask=head < num_heads)


def sinks_gradient_on_cuda(dout: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """See `longca.kernels.sinks.sinks_gradient`. Each block of queries has its sum, so results are deterministic."""
    grid, sizes = _launch(out)
    sums = lse.new_empty((triton.cdiv(out.shape[0], _QUERIES.value), out.shape[1]))
    if out.numel():
        _gradient_kernel[grid](dout, out, lse, sinks.contiguous(), sums, *out.shape[:2], **sizes)
    return sums.sum(0).to(sinks.dtype)


def _launch(out: Tensor) -> tuple[tuple[int], dict[str, Any]]:
    """The grid and the sizes of programs for an output [Tq, Hq, D]."""
    num_queries, num_heads, head_dim = out.shape
    block = triton.next_power_of_2(head_dim)
    heads = min(triton.next_power_of_2(num_heads), max(_ELEMENTS // block, 1))
    sizes = {"HEAD_DIM": head_dim, "BLOCK_D": block, "HEADS": heads, "num_warps": 8}
    return (triton.cdiv(num_queries, _QUERIES.value) * triton.cdiv(num_heads, heads),), sizes
