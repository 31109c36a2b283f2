"""The common part of vsa and vsa_triton: LongCA's masks and tensors in fastvideo-kernel's form.

Its kernels take heads first, [1, heads, tokens, head_dim], and tokens in whole blocks of 64. Zeros fill the last block,
and the kernels get the true number of tokens of each key block, so that no query sees the zeros. Each head has lists of
its own: the key blocks that a query block sees, and for the backward the query blocks that see a key block.

Source: block_sparse_attn.py of https://github.com/hao-ai-lab/FastVideo, fastvideo-kernel 0.3.2 (arXiv 2505.13389).
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, no_gradients, nothing_seen, readable, torch_device
from longca.masks import BlockSparseMask, Form
from longca.metadata.block_lists import BlockLists
from longca.metadata.kept_blocks import kept_lists

__all__ = ["BLOCK", "BlocksPlan", "FastVideoKernel", "heads_first", "library", "padded_sums", "tokens_first"]

BLOCK = 64  # tokens


@dataclass(eq=False, kw_only=True)
class BlocksPlan(Plan):
    """A plan for one of fastvideo-kernel's kernels.

    Attributes:
        by_query: The key blocks that each query block sees: of [heads, query blocks].
        by_key: The query blocks that see each key block: of [heads, key blocks]. None in a plan of the forward alone.
        sizes: Tokens of each key block: int32 [key blocks].
        blind: Queries that see nothing: bool [heads, Tq]. None if all see something.
        is_empty: Whether no query sees anything. Then nothing runs.
    """

    by_query: BlockLists
    by_key: BlockLists | None
    sizes: Tensor
    blind: Tensor | None
    is_empty: bool


class FastVideoKernel:
    """The common part of the adapters. Each adds the calls.

    Attributes:
        function: The library's functions that run, for records.
        fewest: The fewest blocks that its forward takes in a row.
    """

    function: ClassVar[str]
    fewest: ClassVar[int] = 0

    def plan(self, problem: Problem) -> BlocksPlan:
        """Lists of blocks on the problem's device, for each query head."""
        mask, device = problem.concrete_mask, torch_device(problem.device)
        assert isinstance(mask, BlockSparseMask), "the offers are of block-sparse masks"
        by_query = _for_heads(kept_lists(mask, device), problem.heads_q)
        nothing = by_query.counts == 0
        by_key = None
        if problem.direction == "backward":
            by_key = _for_heads(kept_lists(mask, device, by_key=True), problem.heads_q)
        return BlocksPlan(
            problem,
            Form.BLOCK_SPARSE,
            f"fastvideo-kernel 0.3.2, {self.function}",
            by_query=BlockLists(by_query.counts.clamp(min=self.fewest), by_query.columns),
            by_key=by_key,
            sizes=torch.from_numpy(np.diff(mask.k_bounds).astype(np.int32)).to(device),
            blind=nothing.repeat_interleave(BLOCK, -1)[:, : mask.seqlen_q].contiguous() if nothing.any() else None,
            is_empty=bool(nothing.all()),
        )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: BlocksPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v, as `Kernel.forward` describes it."""
        if plan.is_empty:
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        result, sums = self.call_forward(heads_first(q), heads_first(k), heads_first(v), plan)
        result, sums = tokens_first(result, len(q)), sums[0, :, : len(q)]
        if plan.blind is not None:
            result = result.masked_fill(plan.blind.T[..., None], 0)
            sums = sums.masked_fill(plan.blind, -torch.inf)
        return fill(out, result), fill(lse, sums)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: BlocksPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v, as `Kernel.backward` describes them. No list has a query that sees nothing."""
        if plan.is_empty:
            return no_gradients((q, k, v), (dq, dk, dv))
        there = [heads_first(x) for x in (dout, q, k, v, out)]
        grads = self.call_backward(there[0], there[1], there[2], there[3], there[4], lse, plan)
        first, second, third = (
            fill(buffer, tokens_first(grad, len(x)).to(x.dtype))
            for buffer, grad, x in zip((dq, dk, dv), grads, (q, k, v), strict=True)
        )
        return first, second, third

    def call_forward(self, q: Tensor, k: Tensor, v: Tensor, plan: BlocksPlan) -> tuple[Tensor, Tensor]:
        """The library's forward.

        Args:
            q: [1, heads, padded tokens, D], in any strides but the last.
            k: Likewise.
            v: Likewise.
            plan: The plan.

        Returns:
            out, shaped as q, and lse [1, heads, padded tokens] as natural logarithms. Both may be anything for a query
            that sees nothing.
        """
        raise NotImplementedError

    def call_backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: BlocksPlan
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The library's backward: gradients shaped as q, k and v. The lse is LongCA's own, [heads, Tq]."""
        raise NotImplementedError


def heads_first(x: Tensor) -> Tensor:
    """[tokens, heads, D] as [1, heads, tokens in whole blocks, D]: a view of whole blocks, else a copy."""
    tokens, heads, dim = x.shape
    if tokens % BLOCK == 0:
        return readable(x).transpose(0, 1)[None]
    padded = x.new_zeros(1, heads, tokens + -tokens % BLOCK, dim)
    padded[0, :, :tokens] = x.transpose(0, 1)
    return padded


def tokens_first(x: Tensor, tokens: int) -> Tensor:
    """The first tokens of [1, heads, padded tokens, D], as a view of [tokens, heads, D]."""
    return x[0, :, :tokens].transpose(0, 1)


def padded_sums(lse: Tensor, factor: float, unseen: float) -> Tensor:
    """A log-sum-exp in a library's unit, for whole blocks.

    Args:
        lse: Natural logarithms: [heads, Tq].
        factor: The library's unit, as a factor on natural logarithms.
        unseen: The value that makes all probabilities of a query 0. Queries that see nothing have it, and queries past
            the end.

    Returns:
        [1, heads, padded tokens].
    """
    scaled = (lse * factor).masked_fill(lse == -torch.inf, unseen)
    return torch.nn.functional.pad(scaled, (0, -lse.shape[1] % BLOCK), value=unseen)[None]


@cache
def library(module: str) -> Any:
    """A module of fastvideo-kernel, with the driver's own libcuda loaded first.

    The wheel contains a libcuda. Kernels that are linked with it crash with an illegal instruction under another
    driver.
    """
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    return importlib.import_module(f"fastvideo_kernel.{module}")


def _for_heads(lists: BlockLists, heads: int) -> BlockLists:
    """The lists of each head. The kernels want a copy for each head, even if heads share a mask."""
    counts, columns = (x.expand(heads, *x.shape[1:]).contiguous() for x in lists)
    return BlockLists(counts, columns)
