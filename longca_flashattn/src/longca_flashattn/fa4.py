"""FlashAttention-4 (CuTe): full, causal, window and varlen masks natively, others by intervals of tokens or by blocks.

Source: flash_attn/cute/interface.py of https://github.com/Dao-AILab/flash-attention, and `flash-attn-4` on PyPI.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longca.kernels.base import Plan, readable
from longca.manifests import Problem
from longca.masks import BlockSparseMask
from longca_flashattn import NATIVE_FORMS
from longca_flashattn.calls import Call, CallsKernel, CallsPlan
from longca_flashattn.fa4_blocks import BlocksPlan, blocks_backward, blocks_forward, plan_blocks
from longca_flashattn.fa4_functions import capping, flash_backward, flash_backward_with_sinks, flash_forward, version
from longca_flashattn.fa4_intervals import IntervalsPlan, intervals_backward, intervals_forward, plan_intervals

__all__ = ["FlashAttention4", "NativeMasks"]


class FlashAttention4:
    """FlashAttention-4."""

    def __init__(self) -> None:
        self._native = NativeMasks()

    def plan(self, problem: Problem) -> Plan:
        """Turns the mask into one call, or into lists of tiles with the tables for partly visible tiles."""
        mask = problem.concrete_mask
        if any(mask.admits(form) for form in NATIVE_FORMS):
            return self._native.plan(problem)
        if isinstance(mask, BlockSparseMask):
            return plan_blocks(problem, _backend())
        return plan_intervals(problem, _backend())

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `Kernel.forward`."""
        if isinstance(plan, IntervalsPlan):
            return intervals_forward(q, k, v, plan, out, lse)
        if isinstance(plan, BlocksPlan):
            return blocks_forward(q, k, v, plan, out, lse)
        assert isinstance(plan, CallsPlan)
        return self._native.forward(q, k, v, plan, out=out, lse=lse)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: Plan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v. See `Kernel.backward`."""
        if isinstance(plan, IntervalsPlan):
            return intervals_backward(dout, q, k, v, out, lse, plan, (dq, dk, dv))
        if isinstance(plan, BlocksPlan):
            return blocks_backward(dout, q, k, v, out, lse, plan, (dq, dk, dv))
        assert isinstance(plan, CallsPlan)
        return self._native.backward(dout, q, k, v, out, lse, plan, dq=dq, dk=dk, dv=dv)

    def forward_with_sinks(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor] | None:
        """The kernel's own sinks, in one call for rows that all see a key. See `longca.kernels.sinks`."""
        if (call := _call_with_sinks(q, plan)) is None:
            return None
        given = [call.batched(readable(x)) for x in (q, k, v)]
        return flash_forward(*given, out=None, lse=None, learnable_sink=sinks.float(), **_arguments(call, plan))

    def backward_with_sinks(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """The kernel's own gradient of sinks, by the row sums that its backward needs anyway."""
        if (call := _call_with_sinks(q, plan)) is None:
            return None
        dout, q, k, v, out, lse = (call.batched(readable(x)) for x in (dout, q, k, v, out, lse))
        about = {"deterministic": plan.problem.deterministic, **_arguments(call, plan)}
        dq, dk, dv, dsinks = flash_backward_with_sinks(dout, q, k, v, out, lse, sinks.float(), **about)
        return dq, dk, dv, dsinks.to(sinks.dtype)


class NativeMasks(CallsKernel):
    """The masks that FlashAttention-4 takes natively."""

    def backend(self, problem: Problem) -> str:
        """The version of FlashAttention-4."""
        return _backend()

    def call_forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, plan: CallsPlan, out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs one call. See `CallsKernel.call_forward`."""
        return flash_forward(
            *(call.batched(x) for x in (q, k, v)),
            out=None if out is None else call.batched(out),
            lse=None if lse is None else call.batched(lse),
            **(_arguments(call, plan) | capping(plan.problem.softcap)),
        )

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
        """Computes one call's gradients. See `CallsKernel.call_backward`."""
        return flash_backward(
            *(call.batched(x) for x in (dout, q, k, v, out, lse)),
            *(None if x is None else call.batched(x) for x in (dq, dk, dv)),
            deterministic=plan.problem.deterministic,
            **(_arguments(call, plan) | capping(plan.problem.softcap, backward=True)),
        )


def _call_with_sinks(q: Tensor, plan: Plan) -> Call | None:
    """The one call that computes a plan with sinks. None if the kernel's own sinks were not verified for the plan."""
    problem = plan.problem
    is_verified = problem.device.capability == (9, 0) and problem.dims in ((64, 64), (128, 128)) and not problem.softcap
    if not isinstance(plan, CallsPlan) or not is_verified:
        return None
    return plan.calls[0] if len(plan.calls) == 1 and plan.empty is None and q.numel() else None


def _arguments(call: Call, plan: Plan) -> dict[str, Any]:
    varlen = call.cu_seqlens_q is not None
    return {
        "cu_seqlens_q": call.cu_seqlens_q,
        "cu_seqlens_k": call.cu_seqlens_k,
        "max_seqlen_q": call.max_seqlen_q if varlen else None,
        "max_seqlen_k": call.max_seqlen_k if varlen else None,
        "softmax_scale": plan.problem.scale,
        "causal": call.causal,
        "window_size_left": None if call.causal or call.left < 0 else call.left,
        "window_size_right": None if call.causal or call.right < 0 else call.right,
    }


def _backend() -> str:
    return f"flash-attn-4 {version()}"
