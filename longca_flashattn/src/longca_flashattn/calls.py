"""Masks as calls of FlashAttention's functions: one call, or a few calls whose results are merged by log-sum-exp.

FlashAttention 2, 3 and 4 take the same masks: everything, or documents (`cu_seqlens`). One window applies to all
documents and is aligned bottom-right in each. Any other mask is the union of a few such masks, called layers.

Documents of which only one has queries and keys are a call on slices of the tensors, where a kernel asks for it. So are
layers that are a few such rectangles, one below the other.

A layer is alone on its rows if no other layer shows these queries anything. Where a function can leave rows as they
are, such a layer writes its rows of the results, and needs no merging. Some other layers become one call over copies of
keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from longca.kernels.base import Plan, fill, like_out, no_gradients, nothing_seen, readable, torch_device, writable
from longca.manifests import Problem
from longca.masks import Form, Mask
from longca.masks.forms import Varlen, Window
from longca.masks.rectangles import Rectangle, rectangles
from longca.parallel.merge import merge_parts
from longca_flashattn.layers import Copies, EmptyRows, alone_on_rows, has_keys, join_keys, make_copies

__all__ = ["FORMS", "Call", "CallsKernel", "CallsPlan"]

#: The forms in which calls take masks, in order of preference.
FORMS = (Form.FULL, Form.CAUSAL, Form.WINDOW, Form.VARLEN, Form.LAYERS)


@dataclass(frozen=True, eq=False)
class Call:
    """The mask of one call.

    Attributes:
        max_seqlen_q: Queries of the longest document.
        max_seqlen_k: Keys of the longest document.
        left: Number of keys that a query sees left of the bottom-right diagonal. −1 means all.
        right: Number of keys that a query sees right of the bottom-right diagonal. −1 means all.
        cu_seqlens_q: Bounds of the documents' queries, int32 [documents + 1]. None if one document is everything.
        cu_seqlens_k: Bounds of the documents' keys, int32 [documents + 1]. None if one document is everything.
        seqused_q: Queries of each document that are computed, all or none of them: int32 [documents]. None for all
            queries of every document. The other rows of the results are not written.
        rows: Whether each query is computed: bool [Tq]. None like `seqused_q`.
        copies: The copies that the call takes as its keys. None for the keys themselves.
        part: The queries and keys that the call takes. None for all of them. The other queries see nothing.
    """

    max_seqlen_q: int
    max_seqlen_k: int
    left: int
    right: int
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    seqused_q: Tensor | None = None
    rows: Tensor | None = None
    copies: Copies | None = None
    part: Rectangle | None = None

    @property
    def is_alone(self) -> bool:
        """Whether the call is known to be alone on its rows."""
        return self.rows is not None or self.part is not None

    @property
    def causal(self) -> bool:
        """Whether the window is the causal one."""
        return self.left == -1 and self.right == 0

    def batched(self, x: Tensor) -> Tensor:
        """A packed tensor [T, H, …] in the shape that the functions take: [1, T, H, …] if there are no documents."""
        return x if self.cu_seqlens_q is not None else x[None]


@dataclass(eq=False)
class CallsPlan(Plan):
    """A plan of calls.

    Attributes:
        calls: The calls. Layers take several calls, and a mask that shows nothing takes none.
        empty: The queries that see no key. None if every query sees a key.
    """

    calls: tuple[Call, ...]
    empty: EmptyRows | None


class CallsKernel(ABC):
    """The common code of FlashAttention 2, 3 and 4. Subclasses provide the functions that are called.

    Attributes:
        skips_rows: Whether the functions take `Call.seqused_q`.
        joins_keys: Whether layers that would be merged become one call over copies of keys, if they can.
        cuts_tensors: Whether calls take slices of the tensors, where each has one document alone on its rows.
    """

    skips_rows: ClassVar[bool] = False
    joins_keys: ClassVar[bool] = False
    cuts_tensors: ClassVar[bool] = False

    def plan(self, problem: Problem) -> CallsPlan:
        """Turns the mask into calls."""
        mask = problem.concrete_mask
        form = next(form for form in FORMS if mask.admits(form))
        device = torch_device(problem.device)
        calls = self._of_documents(problem, form) if form in (Form.VARLEN, Form.LAYERS) else [_whole(mask, form)]
        return CallsPlan(problem, form, self.backend(problem), tuple(calls), _empty_rows(mask, form, device))

    def _of_documents(self, problem: Problem, form: Form) -> list[Call]:
        """The calls of documents or of layers."""
        mask, device = problem.concrete_mask, torch_device(problem.device)
        varlens = _varlens(mask, form)
        if self.cuts_tensors and (parts := rectangles(mask.head(0), len(varlens))):
            return [
                Call(part.num_rows, part.num_keys, _reach(part.window.left), _reach(part.window.right), part=part)
                for part in parts
            ]
        alone = alone_on_rows(varlens) if self.skips_rows else [False] * len(varlens)
        if self.joins_keys and not all(alone) and (joined := join_keys(varlens)):
            copies = make_copies(joined.keys, mask.seqlen_k, device, with_sums=problem.direction == "backward")
            return [replace(_on(device, joined.varlen, False), copies=copies)]
        return [_on(device, *each) for each in zip(varlens, alone, strict=True)]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: CallsPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        if not (q.numel() and k.numel() and plan.calls):
            return fill(out, torch.zeros_like(like_out(q, v))), fill(lse, nothing_seen(q))
        q, k, v = (readable(x) for x in (q, k, v))
        if len(plan.calls) > 1 or plan.calls[0].part:
            return self._forward_layers(q, k, v, plan, out, lse)
        call = plan.calls[0]
        if call.copies:
            k, v = call.copies.made(k), call.copies.made(v)
        out, lse = self.call_forward(q, k, v, call, plan, out, lse)
        if plan.empty is not None:
            plan.empty.clear(out)
            plan.empty.clear_sums(lse)
        return out, lse

    def _forward_layers(
        self, q: Tensor, k: Tensor, v: Tensor, plan: CallsPlan, out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        merged, alone = _parted(plan.calls)
        if not alone:
            return self._merge_layers(q, k, v, merged, plan, out, lse)
        result, wide = writable(out, like_out(q, v)), torch.promote_types(q.dtype, torch.float32)
        sums = q.new_empty((q.shape[1], q.shape[0]), dtype=wide) if lse is None else lse
        if merged:
            self._merge_layers(q, k, v, merged, plan, result, sums)
        for call in alone:
            if (part := call.part) is not None:
                cut = q[part.rows], k[part.keys], v[part.keys]
                sums[:, part.rows] = self.call_forward(*cut, call, plan, result[part.rows], None)[1]
                continue
            assert call.rows is not None, "the call has rows of its own"
            found = self.call_forward(q, k, v, call, plan, result, None)[1].to(wide)
            torch.where(call.rows, found, sums, out=sums)
            del found  # before the next layer
        if plan.empty is not None:
            plan.empty.clear(result)
            plan.empty.clear_sums(sums)
        return fill(out, result), sums

    def _merge_layers(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        calls: Sequence[Call],
        plan: CallsPlan,
        out: Tensor | None,
        lse: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        outs = q.new_empty((len(calls), *q.shape[:2], v.shape[2]))
        lses = torch.empty((len(calls), q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
        for call, part_out, part_lse in zip(calls, outs, lses, strict=True):
            self.call_forward(q, k, v, call, plan, part_out, part_lse)
        lses.masked_fill_(lses == torch.inf, -torch.inf)  # FlashAttention-2 returns +∞ for a query that sees nothing
        return merge_parts(outs, lses, out=out, lse=lse)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: CallsPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `Kernel.backward`."""
        buffers = (dq, dk, dv)
        if not (q.numel() and k.numel() and plan.calls):
            return no_gradients((q, k, v), buffers)
        if plan.empty is not None:
            # exp(−∞ − lse) is 0 for any finite lse, and NaN if the row's own lse is −∞.
            lse = lse.masked_fill(lse == -torch.inf, 0.0)
        dout, q, k, v, out = (readable(x) for x in (dout, q, k, v, out))
        tensors = (dout, q, k, v, out, lse.contiguous())
        if len(plan.calls) == 1 and (part := plan.calls[0].part) is not None:
            grads = [writable(buffer, x) for buffer, x in zip(buffers, (q, k, v), strict=True)]
            self._cut_backward(tensors, plan.calls[0], part, plan, grads)
            if plan.empty is not None:
                plan.empty.clear(grads[0])
            first, second, third = (fill(buffer, grad) for buffer, grad in zip(buffers, grads, strict=True))
            return first, second, third
        if len(plan.calls) == 1:
            call, copies = plan.calls[0], plan.calls[0].copies
            if copies is None:
                return self.call_backward(*tensors, call, plan, dq, dk, dv)
            tensors = (dout, q, copies.made(k), copies.made(v), *tensors[4:])
            first, second, third = self.call_backward(*tensors, call, plan, dq, None, None)
            return first, fill(dk, copies.summed(second)), fill(dv, copies.summed(third))
        merged, alone = _parted(plan.calls)
        dq_parts = q.new_empty((len(merged), *q.shape))
        dk_parts, dv_parts = (x.new_empty((len(plan.calls), *x.shape)) for x in (k, v))
        for *own, call in zip(dq_parts, dk_parts, dv_parts, merged, strict=False):
            self.call_backward(*tensors, call, plan, *own)
        result = writable(dq, q)
        if merged:
            torch.sum(dq_parts, dim=0, out=result)
        for *own, call in zip(dk_parts[len(merged) :], dv_parts[len(merged) :], alone, strict=True):
            if call.part is not None:
                self._cut_backward(tensors, call, call.part, plan, (result, *own))
            else:
                self.call_backward(*tensors, call, plan, result, *own)
        if alone and plan.empty is not None:
            plan.empty.clear(result)
        sums = (torch.sum(part, 0, out=writable(buffer, part[0])) for part, buffer in ((dk_parts, dk), (dv_parts, dv)))
        first, second, third = (fill(buffer, grad) for buffer, grad in zip(buffers, (result, *sums), strict=True))
        return first, second, third

    def _cut_backward(
        self, tensors: Sequence[Tensor], call: Call, part: Rectangle, plan: CallsPlan, grads: Sequence[Tensor]
    ) -> None:
        """Fills the gradients of a call on slices. It leaves dq of other queries as it is."""
        rows, keys = part.rows, part.keys
        dout, q, k, v, out, lse = tensors
        cut = dout[rows], q[rows], k[keys], v[keys], out[rows], lse[:, rows].contiguous()
        self.call_backward(*cut, call, plan, grads[0][rows], grads[1][keys], grads[2][keys])
        for grad in grads[1:]:
            grad[: keys.start].zero_()
            grad[keys.stop :].zero_()

    @abstractmethod
    def backend(self, problem: Problem) -> str:
        """The function and library that run for a problem."""

    @abstractmethod
    def call_forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, plan: CallsPlan, out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs one call. Returns out [Tq, Hq, Dv] and lse [Hq, Tq], in the given buffers if there are any."""

    @abstractmethod
    def call_backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        call: Call,
        plan: CallsPlan,
        dq: Tensor | None,
        dk: Tensor | None,
        dv: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Computes one call's gradients, in the given buffers if there are any."""


def _parted(calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
    """The layers whose results are merged, and those that are alone on their rows."""
    return [call for call in calls if not call.is_alone], [call for call in calls if call.is_alone]


def _varlens(mask: Mask, form: Form) -> list[Varlen]:
    """The varlen calls of a mask."""
    if form is Form.LAYERS:
        return mask.head(0).layers
    varlen = mask.head(0).varlen
    assert varlen is not None
    return [varlen]


def _window(mask: Mask, form: Form) -> Window:
    match form:
        case Form.FULL:
            return Window(None, None)
        case Form.CAUSAL:
            return Window(None, 0)
        case _:
            window = mask.head(0).window
            assert window is not None
            return window


def _reach(bound: int | None) -> int:
    return -1 if bound is None else bound


def _whole(mask: Mask, form: Form) -> Call:
    window = _window(mask, form)
    return Call(mask.seqlen_q, mask.seqlen_k, _reach(window.left), _reach(window.right))


def _on(device: torch.device, varlen: Varlen, alone: bool) -> Call:
    lengths = np.diff(varlen.cu_seqlens_q)
    used = lengths * has_keys(varlen) if alone else lengths
    # All bounds travel in one array and one copy.
    bounds = np.concatenate([varlen.cu_seqlens_q, varlen.cu_seqlens_k, *([used] if alone else [])])
    cu_seqlens_q, cu_seqlens_k, *seqused_q = torch.from_numpy(bounds).to(device).split(len(varlen.cu_seqlens_q))
    rows = [torch.from_numpy(np.repeat(used > 0, lengths)).to(device)] if alone else []
    left, right = _reach(varlen.window.left), _reach(varlen.window.right)
    longest = int(used.max(initial=0)), varlen.max_seqlen_k
    return Call(*longest, left, right, cu_seqlens_q, cu_seqlens_k, *seqused_q, *rows)


def _empty_rows(mask: Mask, form: Form, device: torch.device) -> EmptyRows | None:
    """The queries that see no key. None if every query sees a key."""
    if form in (Form.FULL, Form.CAUSAL) and mask.seqlen_q <= mask.seqlen_k:
        return None
    empty = mask.head(0).row_pieces.empty_rows()
    return None if empty is None else EmptyRows.of(empty, device)
