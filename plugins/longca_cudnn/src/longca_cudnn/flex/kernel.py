"""cudnn_flex: cuDNN's open FlexAttention kernels in the CuTe DSL, for masks of row intervals.

The library plans a mask on the device, from the endpoints of each query's intervals. The plan has lists of the fully
and the partly visible tiles, and the bits of the latter. It serves every layer with this mask.

The log-sum-exp is a natural logarithm, [Hq, Tq]. The backward reads out and lse as inputs, so both may be those of a
larger softmax. Outputs go straight into buffers whose address and strides are multiples of 16 bytes.

The library writes messages while it compiles. They are discarded.

Shapes: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], out [Tq, Hq, Dv], lse [Hq, Tq].

Source: cudnn/flex_attention of https://github.com/NVIDIA/cudnn-frontend, nvidia-cudnn-frontend 1.32.0.
"""

from __future__ import annotations

import importlib
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longca import Problem
from longca.kernels.base import (
    Plan,
    fill,
    like_out,
    no_gradients,
    nothing_seen,
    on_device_of,
    torch_device,
    torch_dtype,
)
from longca.masks import BlockSparseMask, Form, Mask
from longca.masks.intervals import IntervalPieces
from longca.metadata.interval_tables import interval_tables
from longca.metadata.kept_blocks import kept_blocks
from longca_cudnn.aligned import aligned, is_aligned, result_for

__all__ = ["CuDNNFlex", "FlexPlan", "library"]


def endpoints_of(mask: Mask, heads_q: int, device: torch.device) -> Tensor:
    """The endpoints of each query: int32 [heads, endpoints, Tq], with one head or all query heads."""
    if mask.admits(Form.ROW_INTERVALS):
        return _of_intervals(mask.head(0).row_pieces, device)[None]
    assert isinstance(mask, BlockSparseMask), "only block-sparse masks have a mask per head"
    endpoints = _of_blocks(mask, device)
    return endpoints if mask.heads == heads_q else endpoints.repeat_interleave(heads_q // mask.heads, 0)


def blind_queries(endpoints: Tensor) -> Tensor:
    """Whether each query sees nothing: bool [heads, Tq]."""
    return endpoints[:, 0::2].sum(1) == endpoints[:, 1::2].sum(1)


def count_of(pieces: IntervalPieces) -> int:
    """The smallest odd number of endpoints that every query's intervals fit in.

    An interval takes two endpoints. The first interval of a query takes one if it begins at key 0. Else F0 comes before
    it.
    """
    intervals = np.bincount(pieces.segment, minlength=len(pieces.heights))
    heights = pieces.heights[pieces.segment]
    at_zero = (pieces.slot == 0) & (pieces.start == 0) & ((pieces.start_step == 0) | (heights == 1))
    begins = np.bincount(pieces.segment[at_zero], minlength=len(intervals))
    return int((2 * intervals + 1 - 2 * begins).max(initial=1))


def _of_intervals(pieces: IntervalPieces, device: torch.device) -> Tensor:
    """The endpoints of rows of intervals: int32 [endpoints, rows]."""
    count, rows = count_of(pieces), int(pieces.rows[-1])
    if count == 1 and not pieces.max_intervals:
        return torch.zeros((1, rows), dtype=torch.int32, device=device)
    starts, stops = interval_tables(pieces, device)
    ends = torch.stack([starts, stops], 1).flatten(0, 1)
    after_zero = torch.nn.functional.pad(ends, (0, 0, 1, 0))
    if count < len(after_zero):  # every row with the most intervals begins at key 0
        after_zero = torch.where(starts[0] == 0, ends[1:], after_zero[:count])
    return after_zero.cummax(0).values


def _of_blocks(mask: BlockSparseMask, device: torch.device) -> Tensor:
    """The endpoints of the mask's own heads: int32 [mask heads, endpoints, Tq]."""
    kept = kept_blocks(mask, device)
    # An endpoint lies where visibility turns. Before key 0 it counts as visible.
    turns = kept != torch.nn.functional.pad(kept[..., :-1], (1, 0), value=True)
    count = int(turns.sum(-1).max()) | 1
    place = torch.where(turns, turns.cumsum(-1) - 1, count)
    starts = torch.from_numpy(mask.k_bounds[:-1].astype(np.int32)).to(device).expand(kept.shape)
    by_block = torch.full((*kept.shape[:2], count + 1), mask.seqlen_k, dtype=torch.int32, device=device)
    by_block.scatter_(-1, place, starts)
    sizes = torch.from_numpy(np.diff(mask.q_bounds)).to(device)
    return by_block[..., :count].mT.repeat_interleave(sizes, -1)


_WIDE_HEAD = 256  # its backward wants strides and addresses in multiples of 128 bytes
_LINE = 128


@dataclass(eq=False, kw_only=True)
class FlexPlan(Plan):
    """A plan for cudnn_flex.

    Attributes:
        mask_plan: The library's plan. None if no query sees a key. Then nothing runs.
        blind: Whether each query sees nothing: bool [1 or Hq, Tq]. None if every query sees a key.
        calls: The library's callables, one for each direction and layout of the tensors.
    """

    mask_plan: Any = None
    blind: Tensor | None = None
    calls: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the library's plan and of `blind`."""
        held = [] if self.mask_plan is None else list(_tensors(self.mask_plan._packed_plan))
        held += [] if self.mask_plan is None else list(_tensors(self.mask_plan._deterministic_packed_plan))
        held += [] if self.blind is None else [self.blind]
        return sum({x.data_ptr(): x.nbytes for x in held}.values())


class CuDNNFlex:
    """cuDNN's open FlexAttention."""

    def plan(self, problem: Problem) -> FlexPlan:
        """Makes the endpoints of each query on the device, and the library's plan from them."""
        mask, device = problem.concrete_mask, torch_device(problem.device)
        form = Form.ROW_INTERVALS if mask.admits(Form.ROW_INTERVALS) else Form.BLOCK_SPARSE
        plan = FlexPlan(problem, form, "cudnn.flex_attention")
        if not mask.area:
            return plan
        endpoints = endpoints_of(mask, problem.heads_q, device)
        blind = blind_queries(endpoints)
        plan.blind = blind if blind.any() else None
        with _quiet():
            plan.mask_plan = library().create_mask_plan(
                endpoints, *_samples(problem, device), build_backward=problem.direction == "backward"
            )
        return plan

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: FlexPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `longca.kernels.base.Kernel.forward`."""
        if plan.mask_plan is None:
            return fill(out, torch.zeros_like(like_out(q, v))), fill(lse, nothing_seen(q))
        result = result_for(out, like_out(q, v))
        sums = lse if lse is not None and is_aligned(lse, 4, 4) else q.new_empty(_lse_shape(q), dtype=torch.float32)
        tensors = [x[None] for x in (*map(aligned, (q, k, v)), result, sums)]
        with on_device_of(q):
            *operands, batched_sums = tensors
            call = _compiled(plan, "FlexAttentionFwd", (*operands, plan.mask_plan, batched_sums), tensors)
            space = torch.empty(call.workspace_size, dtype=torch.uint8, device=q.device)
            call.execute(*operands, plan.mask_plan, batched_sums, workspace=space, softmax_scale=plan.problem.scale)
        if plan.blind is not None:
            result.masked_fill_(plan.blind.T[..., None], 0.0)
            sums.masked_fill_(plan.blind, -torch.inf)
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
        if plan.mask_plan is None:
            return no_gradients((q, k, v), (dq, dk, dv))
        layout = (_LINE, _LINE) if q.shape[-1] == _WIDE_HEAD else ()
        inputs = [aligned(x, *layout) for x in (q, k, v, out, dout)]
        grads = [result_for(buffer, x, *layout) for buffer, x in ((dq, q), (dk, k), (dv, v))]
        tensors = [x[None] for x in (*inputs, lse.contiguous(), *grads)]
        with on_device_of(q):
            exact = plan.problem.deterministic
            call = _compiled(plan, "FlexAttentionBwd", (*tensors, plan.mask_plan), tensors, deterministic=exact)
            space = torch.empty(call.workspace_size, dtype=torch.uint8, device=q.device)
            call.execute(*tensors, plan.mask_plan, workspace=space, softmax_scale=plan.problem.scale)
        first, second, third = (fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))
        return first, second, third


def library() -> Any:
    """The module cudnn.flex_attention. Its warning that its interfaces are experimental is silenced."""
    for name in ("FlexAttentionFwd", "FlexAttentionBwd"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return importlib.import_module("cudnn.flex_attention")


def _compiled(plan: FlexPlan, name: str, arguments: tuple[Any, ...], tensors: list[Tensor], **options: bool) -> Any:
    """The library's callable for tensors of these layouts. The first use compiles it, unless the library has it."""
    key = (name, *(x.stride() for x in tensors))
    if key not in plan.calls:
        with _quiet():
            call = getattr(library(), name)(*arguments, **options)
            call.check_support()
            call.compile()
        plan.calls[key] = call
    return plan.calls[key]


def _samples(problem: Problem, device: torch.device) -> Iterator[Tensor]:
    """q, k and v for planning, which reads their shapes and dtype alone. They take no memory."""
    mask, dtype = problem.concrete_mask, torch_dtype(problem.dtype)
    queries, keys = (mask.seqlen_q, problem.heads_q), (mask.seqlen_k, problem.num_heads_kv)
    for rows, dim in ((queries, problem.dims[0]), (keys, problem.dims[0]), (keys, problem.dims[1])):
        yield torch.empty(dim, dtype=dtype, device=device).expand(1, *rows, -1)


def _lse_shape(q: Tensor) -> tuple[int, int]:
    return q.shape[1], q.shape[0]


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors within nested tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


@contextmanager
def _quiet() -> Iterator[None]:
    """Discards what is printed."""
    with redirect_stdout(io.StringIO()):
        yield
