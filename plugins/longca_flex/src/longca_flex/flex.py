"""flex: PyTorch's FlexAttention, compiled once, on block lists and row intervals or bits of blocks.

FlexAttention is a template of a Triton kernel: a function of (query, key) says what is visible, lists of blocks say
which blocks to visit at all, and in which of them the function need not be asked. Here the function reads each
query's intervals, or the bits of a block-sparse mask, and the lists come from the mask's runs or from these bits, so
that nothing is ever queries × keys.

Source: FlexAttention (arXiv 2412.05496); torch/nn/attention/flex_attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, nothing_seen, torch_device
from longca.masks import BlockSparseMask, Form
from longca.metadata.interval_tables import interval_tables
from longca_flex import compiled, has_few_intervals
from longca_flex.compiled import BLOCK, Seen, compiling_once
from longca_flex.lists import SideLists, side_lists
from longca_flex.tile_lists import kept_bits, tile_side_lists
from longca_flex.tiles import SMALL, tile_size

__all__ = ["Flex", "FlexPlan"]

_INT32 = 2**31
_BACKEND = "flex_attention"


@dataclass(eq=False)
class FlexPlan(Plan):
    """A plan for flex.

    Attributes:
        seen: First key and one past the last of each interval of each query: 2n tensors, each int32 [Tq]; or the bits
            of a block-sparse mask.
        by_query: The key blocks that each query block visits.
        by_key: The query blocks that each key block visits; None where only the forward was planned for.
        small: Whether the lists' blocks are of 64 tokens, and not of 128.
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
        """Bytes of the plan's block lists, of which one may borrow another's memory."""
        lists = (*self.by_query, *(self.by_key or ()))
        return sum({x.data_ptr(): x.nbytes for x in lists}.values())


class Flex:
    """PyTorch's FlexAttention.

    Args:
        backend: What compiles it: the name of a backend of `torch.compile`, or a backend. All but the default are for
            looking into what is compiled; `eager` computes queries × keys.
    """

    def __init__(self, backend: str | Callable[..., Any] = "inductor") -> None:
        # A whole graph or none: what was not compiled would compute queries × keys, and not say so.
        options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "backend": backend}
        self._forward: Callable[..., tuple[Tensor, Tensor]] = torch.compile(compiled.forward, **options)
        self._backward: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.compile(compiled.backward, **options)

    def plan(self, problem: Problem) -> FlexPlan:
        """Puts the block lists on the device, and the row intervals or the bits."""
        mask = problem.concrete_mask
        if has_few_intervals(mask):
            return _plan_intervals(problem)
        assert isinstance(mask, BlockSparseMask)
        return _plan_blocks(problem, mask)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: FlexPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v; see `longca.kernels.base.Kernel.forward`."""
        if not (q.numel() and k.numel()):
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        block = _block(q, k)
        with compiling_once():
            result, sums = self._forward(
                *(_in_blocks(x, block) for x in (q, k, v)), plan.seen, plan.by_query, plan.problem.scale, plan.small
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
        """Gradients of q, k and v; see `longca.kernels.base.Kernel.backward`."""
        if q.numel() and k.numel():
            assert plan.by_key is not None, "the plan was made for the forward alone"
            block = _block(q, k)
            log2_sum = (lse * math.log2(math.e)).contiguous().unsqueeze(0)  # the kernel takes no strides of it
            with compiling_once():
                grads = self._backward(
                    *(_in_blocks(x, block) for x in (dout, q, k, v, out)),
                    log2_sum,
                    plan.seen,
                    plan.by_query,
                    plan.by_key,
                    plan.problem.scale,
                    plan.small,
                )
        else:
            grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        first, second, third = (fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))
        return first, second, third


def _plan_intervals(problem: Problem) -> FlexPlan:
    mask, device = problem.concrete_mask, torch_device(problem.device)
    # A mask that shows nothing still takes a function to say so. Copies, since compiled code wants aligned memory.
    pieces = mask.head(0).row_pieces
    intervals = zip(*interval_tables(pieces, device, max(1, pieces.max_intervals)), strict=True)
    bounds = tuple(side.clone() for interval in intervals for side in interval)
    blocks = mask.blocks(BLOCK, BLOCK)
    by_query = side_lists(blocks.by_query, device)
    by_key = side_lists(blocks.by_key, device) if problem.direction == "backward" else None
    return FlexPlan(problem, Form.ROW_INTERVALS, _BACKEND, bounds, by_query, by_key)


def _plan_blocks(problem: Problem, mask: BlockSparseMask) -> FlexPlan:
    device, heads = torch_device(problem.device), problem.heads_q
    by_query = tile_side_lists(mask, heads, device, by_key=False)
    by_key = tile_side_lists(mask, heads, device, by_key=True) if problem.direction == "backward" else None
    seen, small = kept_bits(mask, heads, device), tile_size(mask) == SMALL
    return FlexPlan(problem, Form.BLOCK_SPARSE, _BACKEND, seen, by_query, by_key, small)


def _block(q: Tensor, k: Tensor) -> int:
    """Tokens a block of what goes into the compiled functions: BLOCK where both lengths are multiples of it."""
    return 1 if q.shape[0] % BLOCK or k.shape[0] % BLOCK else BLOCK


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """[T, H, D] → [T / block, block, H, D], where only the first size is one that changes.

    A view, but where the kernel's arithmetic would not do: it wants D contiguous, and multiplies a key's or a query's
    index with its stride in 32 bits. Where that overflows, as at 256 K tokens of 64 heads of 128, heads come first.
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
