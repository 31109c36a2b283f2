"""FlashAttention-3 on block-sparse masks: its paged forward. It has no backward.

FlashAttention-3 reads keys by a page table, so the keys of a sequence may lie anywhere in memory. Here a sequence is
one block of queries, and its page table lists the keys that the block sees. Pages are views of k and v, so no key is
copied.

A page table serves all KV heads of a call. Masks that differ by KV head take one call each, or the joint call below.
The library takes pages of any size and reads no row past a sequence's last key. A sequence without keys gets out 0 and
lse −∞.

Source: `mha_fwd` of hopper/flash_api.cpp, hopper/paged_kv.h and hopper/epilogue_fwd.hpp of
https://github.com/Dao-AILab/flash-attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill, nothing_seen, torch_device
from longca.kernels.sizes import block_sparse
from longca.manifests import Problem
from longca.masks import Form
from longca_flashattn.fa3 import operators
from longca_flashattn.pages import JointPages, Pages, joint_pages, make_pages, runs_jointly

__all__ = ["FlashAttention3Sparse", "PagesPlan"]

_ALIGNMENT = 16  # bytes that are loaded at once


@dataclass(eq=False)
class PagesPlan(Plan):
    """A plan of pages.

    Attributes:
        pages: The pages of each block of queries. None for a mask that shows nothing.
        joint: The pages of all KV heads for one call. None if each KV head takes a call.
    """

    pages: Pages | None
    joint: JointPages | None = None


class FlashAttention3Sparse:
    """FlashAttention-3 by pages."""

    def plan(self, problem: Problem) -> PagesPlan:
        """Lists the pages of each block of queries, on the problem's device."""
        mask, backend = block_sparse(problem), operators()[1]
        if not mask.keys_by_block.any():
            return PagesPlan(problem, Form.BLOCK_SPARSE, backend, None)
        pages = make_pages(mask, torch_device(problem.device))
        joint = joint_pages(mask, pages, problem.heads_q) if runs_jointly(problem) else None
        return PagesPlan(problem, Form.BLOCK_SPARSE, backend, pages, joint)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: PagesPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        if plan.pages is None:
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        q, k, v = (x if _loads(x) else x.clone(memory_format=torch.contiguous_format) for x in (q, k, v))
        result = out if out is not None and _loads(out) else torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if lse is None:
            lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
        if plan.joint is not None and all(_tokens_apart(x) for x in (q, k, v, result)):
            _jointly(q, k, v, plan.joint, plan.pages.size, plan.problem.scale, result, lse)
        else:
            _by_mask_heads(q, k, v, plan.pages, plan.problem.scale, result, lse)
        return fill(out, result), lse


def _by_mask_heads(q: Tensor, k: Tensor, v: Tensor, pages: Pages, scale: float, result: Tensor, lse: Tensor) -> None:
    """Writes out and lse by a call for each mask head."""
    whole = k.shape[0] // pages.size  # a shorter last page is listed, but no view has it
    k, v = (x[: whole * pages.size].unflatten(0, (whole, pages.size)) for x in (k, v))
    heads = len(pages.table)
    queries, keys = q.shape[1] // heads, k.shape[2] // heads
    for head in range(heads):
        own, seen = slice(head * queries, (head + 1) * queries), slice(head * keys, (head + 1) * keys)
        _, sums, *_ = operators()[0].fwd(
            q[:, own],
            k[:, :, seen],
            v[:, :, seen],
            out=result[:, own],
            cu_seqlens_q=pages.cu_seqlens_q,
            max_seqlen_q=pages.longest,
            page_table=pages.table[head],
            seqused_k=pages.keys[head],
            softmax_scale=scale,
            num_splits=1,
        )
        lse[own].copy_(sums)


def _jointly(
    q: Tensor, k: Tensor, v: Tensor, pages: JointPages, size: int, scale: float, result: Tensor, lse: Tensor
) -> None:
    """Writes out and lse by one call for all KV heads.

    A sequence is a unit of queries under one KV head. The library sees its tokens as heads, and the heads of its group
    as tokens. A row of the library's queries is then one head of one token, so a sequence may begin at any head.
    Pages begin at any head of any key in the same way, so the page table picks the KV head.

    The library's lse is float32 [unit, rows]. It is written only in the rows of the first token of each unit.
    """
    queries, heads = q.shape[:2]
    units, rows = queries // pages.unit, queries * heads - (pages.unit - 1) * heads
    _, sums, *_ = operators()[0].fwd(
        _heads_as_rows(q, rows, pages.unit),
        *(_pages_of_heads(x, size) for x in (k, v)),
        out=_heads_as_rows(result, rows, pages.unit),
        cu_seqlens_q=pages.first,
        seqused_q=pages.group,
        max_seqlen_q=heads // k.shape[1],
        page_table=pages.table,
        seqused_k=pages.keys,
        softmax_scale=scale,
        num_splits=1,
    )
    sums = sums.as_strided((heads, units, pages.unit), (1, pages.unit * heads, rows))
    lse.unflatten(1, (units, pages.unit)).copy_(sums)


def _heads_as_rows(x: Tensor, rows: int, unit: int) -> Tensor:
    """[T, H, D] → [rows, unit, D], where row t · H + h and place u are token t + u under head h. Rows overlap."""
    return x.as_strided((rows, unit, x.shape[2]), (x.stride(1), x.stride(0), 1))


def _pages_of_heads(x: Tensor, size: int) -> Tensor:
    """[T, H, D] → [pages, size, 1, D], where page t · H + h begins at token t under head h. Pages overlap."""
    tokens, heads, dim = x.shape
    pages = (tokens // size * size - size + 1) * heads
    return x.as_strided((pages, size, 1, dim), (x.stride(1), x.stride(0), x.stride(1), 1))


def _loads(x: Tensor) -> bool:
    """Whether the library can load and store each head of each token."""
    apart = (x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:2]))
    return x.stride(2) == 1 and all(place % _ALIGNMENT == 0 for place in apart)


def _tokens_apart(x: Tensor) -> bool:
    """Whether a token's heads fill the way to the next token, as in a contiguous tensor."""
    return x.stride(0) == x.shape[1] * x.stride(1)
