"""FlashInfer's attention with variable blocks, forward only, on its kernels after FlashAttention-2 or -3.

The wrapper treats each key as a page of one token, and each query block of each KV head as a request. The pages of a
request are the keys that the block sees. The query heads of a group are packed into one tile. The log-sum-exp has
base 2.

Source: flashinfer/sparse.py of https://github.com/flashinfer-ai/flashinfer, versions 0.6.3 and 0.7.2, and arXiv
2501.01005.
"""

from __future__ import annotations

import importlib
import math
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import Plan, fill, nothing_seen, torch_device, torch_dtype
from longca.masks import BlockSparseMask, Form
from longca.metadata.kept_blocks import kept_blocks
from longca_flashinfer.memory import LENGTHS, Sizes, available_bytes, check_memory, sizes_of

__all__ = ["FlashInferFA2", "FlashInferFA3", "FlashInferPlan"]

_SCHEDULE = 8 * 2**20  # bytes of the wrapper's own schedule buffer


@dataclass(eq=False, kw_only=True)
class FlashInferPlan(Plan):
    """A plan for one of FlashInfer's backends.

    Attributes:
        wrapper: FlashInfer's wrapper, planned. None if no query sees anything.
        lists: The wrapper's tensors of the mask: bounds of query blocks, bounds of lists, lists, last pages.
        schedule: The wrapper's tensors of the order of work and of row lengths. Their buffers may be oversized.
        workspace_bytes: Bytes of scratch memory for partial results. It is no metadata.
        compile_seconds: Planning time spent on compiling or loading the compiled kernel. Close to 0 once that is done.
        blind: Whether each query sees nothing: bool [Hq, Tq]. None if every query sees a key.
    """

    wrapper: Any = None
    lists: tuple[Tensor, ...] = ()
    schedule: tuple[Tensor, ...] = ()
    workspace_bytes: int = 0
    compile_seconds: float = 0.0
    blind: Tensor | None = None


class _FlashInfer:
    """The common code of both backends."""

    backend: ClassVar[str]

    def plan(self, problem: Problem) -> FlashInferPlan:
        """Plans lists of keys and a schedule. The first use of a head dimension and dtype compiles the kernel.

        Raises:
            OutOfMemoryError: The lists do not fit in the device's memory.
        """
        mask, device = problem.concrete_mask, torch_device(problem.device)
        assert isinstance(mask, BlockSparseMask), "the offers are of block-sparse masks"
        backend = f"flashinfer-python {_library('flashinfer').__version__}, {self.backend}"
        if mask.is_empty:
            return FlashInferPlan(problem, Form.BLOCK_SPARSE, backend)
        sizes = sizes_of(problem, self.backend, _processors(device))
        check_memory(sizes, available_bytes(device))
        kept = kept_blocks(mask, device).expand(problem.num_heads_kv, -1, -1)
        nothing = ~kept.any(-1)
        compile_seconds = self._compiled(problem)
        wrapper = self._planned(problem, mask, _with_first(kept, nothing), sizes)
        return FlashInferPlan(
            problem,
            Form.BLOCK_SPARSE,
            backend,
            wrapper=wrapper,
            lists=(
                wrapper._qo_indptr,
                wrapper._paged_kv_indptr_buf,
                wrapper._paged_kv_indices_buf,
                wrapper._paged_kv_last_page_len,
            ),
            schedule=(wrapper._int_workspace_buffer, wrapper._kv_lens_buffer),
            workspace_bytes=sizes.float_bytes,
            compile_seconds=compile_seconds,
            blind=_of_queries(nothing, mask, problem) if nothing.any() else None,
        )

    def _compiled(self, problem: Problem) -> float:
        """Compiles or loads the kernel for a head dimension and dtype, and returns the seconds that this took."""
        library, dtype, dim = _library("flashinfer.prefill"), torch_dtype(problem.dtype), problem.head_dim
        no_positions, no_window, no_half_scores = 0, False, False
        start = time.perf_counter()
        library.get_batch_prefill_module(
            self.backend,
            *(dtype, dtype, dtype, torch.int32, dim, dim, no_positions, no_window),
            problem.softcap is not None,
            no_half_scores,
        )
        return time.perf_counter() - start

    def _planned(self, problem: Problem, mask: BlockSparseMask, kept: Tensor, sizes: Sizes) -> Any:
        """A planned wrapper whose buffers are large enough for the mask."""
        device = kept.device
        workspace = torch.empty(sizes.float_bytes, dtype=torch.uint8, device=device)
        wrapper = _library("flashinfer").VariableBlockSparseAttentionWrapper(workspace, backend=self.backend)
        if sizes.int_bytes > _SCHEDULE:
            larger = torch.empty(sizes.int_bytes, dtype=torch.uint8, device=device)
            wrapper.reset_workspace_buffer(workspace, larger)
        if sizes.rows > LENGTHS:
            wrapper._kv_lens_buffer = torch.empty(sizes.rows, dtype=torch.int32, device=device)
        rows, columns = (
            torch.from_numpy(np.diff(bounds).astype(np.int32)).to(device).expand(len(kept), -1)
            for bounds in (mask.q_bounds, mask.k_bounds)
        )
        wrapper.plan(
            kept,
            rows,
            columns,
            problem.heads_q,
            problem.num_heads_kv,
            problem.head_dim,
            sm_scale=problem.scale,
            logits_soft_cap=problem.softcap,
            q_data_type=torch_dtype(problem.dtype),
        )
        return wrapper

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: FlashInferPlan,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`. The wrapper copies its inputs to a heads-first layout."""
        if plan.wrapper is None:
            return fill(out, torch.zeros_like(q)), fill(lse, nothing_seen(q))
        result, sums = plan.wrapper.run(*(x.transpose(0, 1) for x in (q, k, v)), return_lse=True)
        result, sums = result.transpose(0, 1), sums * math.log(2)
        if plan.blind is not None:
            result = result.masked_fill(plan.blind.T[..., None], 0)
            sums = sums.masked_fill(plan.blind, -torch.inf)
        return fill(out, result), fill(lse, sums)


class FlashInferFA2(_FlashInfer):
    """FlashInfer's kernels after FlashAttention-2."""

    backend = "fa2"


class FlashInferFA3(_FlashInfer):
    """FlashInfer's kernels after FlashAttention-3, for Hopper."""

    backend = "fa3"


def _with_first(kept: Tensor, nothing: Tensor) -> Tensor:
    """The bitmap with the first block added in rows that see nothing, so that no list is empty."""
    if not nothing.any():
        return kept
    filled = kept.clone()
    filled[..., 0] |= nothing
    return filled


def _of_queries(nothing: Tensor, mask: BlockSparseMask, problem: Problem) -> Tensor:
    """Expands flags of query blocks, [Hkv, blocks], to flags of each query of each head: [Hq, Tq]."""
    sizes = torch.from_numpy(np.diff(mask.q_bounds)).to(nothing.device)
    by_head = nothing.repeat_interleave(problem.heads_q // problem.num_heads_kv, 0)
    return by_head.repeat_interleave(sizes, 1)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _library(module: str) -> Any:
    return importlib.import_module(module)
