"""flex: PyTorch's FlexAttention, compiled once, on block lists and row intervals or bits of blocks.

FlexAttention is a template of a Triton kernel. A function of (query, key) says which pairs are visible. Lists of blocks
say which blocks to visit, and in which of them the kernel need not call the function. Here the function reads each
query's intervals, or the bits of a block-sparse mask. The lists come from the mask's runs or from these bits, so no
tensor has the size queries × keys.

Source: FlexAttention (arXiv 2412.05496) and torch/nn/attention/flex_attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, new_out, nothing_seen, torch_device
from longca.masks import BlockSparseMask, Form
from longca.metadata.interval_tables import interval_tables
from longca_flex import compiled, has_few_intervals
from longca_flex.compiled import compiling_once
from longca_flex.lists import LEAST, SideLists, side_lists
from longca_flex.pieces import BLOCK, Seen
from longca_flex.tile_lists import kept_bits, tile_side_lists
from longca_flex.tiles import SMALL, tile_size

__all__ = ["Flex", "FlexPlan", "plan_intervals"]

_INT32 = 2**31
_BACKEND = "flex_attention"


@dataclass(eq=False)
class FlexPlan(Plan):
    """A plan for flex.

    Attributes:
        seen: For intervals, the first key and one past the last key of each: 2n tensors, each int32 [Tq]. For
            block-sparse masks, the bits of the blocks.
        by_query: The key blocks that each query block visits.
        by_key: The query blocks that each key block visits. None if only the forward was planned.
        small: Whether the lists' blocks have 64 tokens instead of 128.
    """

    seen: Seen
    by_query: SideLists
    by_key: SideLists | None
    small: bool = False

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the plan's tensors."""
        return self.list_bytes + sum(x.nbytes for x in self.seen)

    @property
    def list_bytes(self) -> int:
        """Bytes of the plan's block lists. Memory that two lists share counts once."""
        lists = (*self.by_query, *(self.by_key or ()))
        return sum({x.data_ptr(): x.nbytes for x in lists}.values())


class Flex:
    """PyTorch's FlexAttention.

    Args:
        backend: The compiler: the name of a backend of `torch.compile`, or a backend. Backends other than the default
            serve to inspect the compiled graphs. `eager` computes queries × keys.
        forward: The function that is compiled for the forward.
        backward: The function that is compiled for the backward.
    """

    def __init__(
        self,
        backend: str | Callable[..., Any] = "inductor",
        forward: Callable[..., tuple[Tensor, Tensor]] = compiled.forward,
        backward: Callable[..., tuple[Tensor, Tensor, Tensor]] = compiled.backward,
    ) -> None:
        # A part that is not compiled would silently compute queries × keys, so fullgraph is set.
        options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "backend": backend}
        self._forward: Callable[..., tuple[Tensor, Tensor]] = torch.compile(forward, **options)
        self._backward: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.compile(backward, **options)

    def plan(self, problem: Problem) -> FlexPlan:
        """Puts the block lists, and the row intervals or the bits, on the device."""
        mask = problem.concrete_mask
        if has_few_intervals(mask):
            return plan_intervals(problem)
        assert isinstance(mask, BlockSparseMask)
        return _plan_blocks(problem, mask)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: FlexPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `longca.kernels.base.Kernel.forward`."""
        if not (q.numel() and k.numel()):
            return fill(out, new_out(q, v).zero_()), fill(lse, nothing_seen(q))
        block = _block(q, k)
        with compiling_once():
            result, sums = self._forward(
                *(_in_blocks(x, block) for x in (q, k, v)),
                plan.seen,
                plan.by_query,
                plan.problem.scale,
                plan.problem.softcap,
                plan.small,
            )
        return fill(out, result), fill(lse, sums)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: FlexPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `longca.kernels.base.Kernel.backward`."""
        if q.numel() and k.numel():
            assert plan.by_key is not None, "the plan was made for the forward alone"
            block = _block(q, k)
            with compiling_once():
                grads = self._backward(
                    *(_in_blocks(x, block) for x in (dout, q, k, v, out)),
                    self._sums(lse),
                    plan.seen,
                    plan.by_query,
                    plan.by_key,
                    plan.problem.scale,
                    plan.problem.softcap,
                    plan.small,
                )
        else:
            grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        first, second, third = (fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))
        return first, second, third

    def _sums(self, lse: Tensor) -> Tensor:
        """The log-sum-exp as the backward takes it: [1, Hq, Tq]. The kernel ignores its strides."""
        return (lse * math.log2(math.e)).contiguous().unsqueeze(0)


def plan_intervals(problem: Problem, least: int = LEAST) -> FlexPlan:
    """Turns a mask into intervals and block lists."""
    mask, device = problem.concrete_mask, torch_device(problem.device)
    # A mask that shows nothing still needs a function. The tensors are copies, because compiled code needs aligned
    # memory.
    pieces = mask.head(0).row_pieces
    intervals = zip(*interval_tables(pieces, device, max(1, pieces.max_intervals)), strict=True)
    bounds = tuple(side.clone() for interval in intervals for side in interval)
    blocks = mask.blocks(BLOCK, BLOCK)
    by_query = side_lists(blocks.by_query, device, least)
    by_key = side_lists(blocks.by_key, device, least) if problem.direction == "backward" else None
    return FlexPlan(problem, Form.ROW_INTERVALS, _BACKEND, bounds, by_query, by_key)


def _plan_blocks(problem: Problem, mask: BlockSparseMask) -> FlexPlan:
    device, heads = torch_device(problem.device), problem.heads_q
    by_query = tile_side_lists(mask, heads, device, by_key=False)
    by_key = tile_side_lists(mask, heads, device, by_key=True) if problem.direction == "backward" else None
    seen, small = kept_bits(mask, heads, device), tile_size(mask) == SMALL
    return FlexPlan(problem, Form.BLOCK_SPARSE, _BACKEND, seen, by_query, by_key, small)


def _block(q: Tensor, k: Tensor) -> int:
    """Tokens of a block of the compiled functions' tensors: BLOCK if both lengths are multiples of it."""
    return 1 if q.shape[0] % BLOCK or k.shape[0] % BLOCK else BLOCK


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """[T, H, D] → [T / block, block, H, D]. Only the first size varies.

    The result is a view unless the kernel's arithmetic needs a copy. The kernel wants D contiguous, and it multiplies
    a token's index by the token's stride in 32 bits. If that overflows, as at 256 K tokens of 64 heads of 128, the copy
    has heads first.
    """
    x = x.detach()
    if x.stride(-1) != 1:
        x = x.contiguous()
    if x.shape[0] * x.stride(0) >= _INT32:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    x = x.unflatten(0, (-1, block))
    for dim in (1, 2, 3):
        torch._dynamo.mark_static(x, dim)
    return x
