"""FlashAttention-2, by PyTorch's operators.

Source: arXiv 2307.08691, and aten/src/ATen/native/transformers/cuda/attention.cu of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from longca.kernels.base import fill
from longca.manifests import Problem
from longca_flashattn.calls import Call, CallsKernel, CallsPlan

__all__ = ["FlashAttention2"]


class FlashAttention2(CallsKernel):
    """FlashAttention-2."""

    def backend(self, problem: Problem) -> str:
        """The library whose functions run."""
        return f"torch {torch.__version__}"

    def call_forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, plan: CallsPlan, out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs one call. See `CallsKernel.call_forward`."""
        result, sums, *_ = torch.ops.aten._flash_attention_forward(
            *(call.batched(x) for x in (q, k, v)),
            call.cu_seqlens_q,
            call.cu_seqlens_k,
            call.max_seqlen_q,
            call.max_seqlen_k,
            0.0,  # dropout
            call.causal,
            False,  # return the dropout's mask
            scale=plan.problem.scale,
            **_window(call),
        )
        return fill(out, result.view(q.shape)), fill(lse, sums.view(q.shape[1], q.shape[0]))

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
        no_dropout = torch.empty(2, dtype=torch.uint64, device=q.device)
        with _determinism(plan.problem.deterministic):
            first, second, third = torch.ops.aten._flash_attention_backward(
                *(call.batched(x) for x in (dout, q, k, v, out, lse)),
                call.cu_seqlens_q,
                call.cu_seqlens_k,
                call.max_seqlen_q,
                call.max_seqlen_k,
                0.0,
                call.causal,
                no_dropout,
                no_dropout,
                scale=plan.problem.scale,
                **_window(call),
            )
        return fill(dq, first.view(q.shape)), fill(dk, second.view(k.shape)), fill(dv, third.view(v.shape))


def _window(call: Call) -> dict[str, int]:
    """The window arguments, if the causal flag does not express the window."""
    return {} if call.causal else {"window_size_left": call.left, "window_size_right": call.right}


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    """Sets the global flag for PyTorch's deterministic backward. The operator ignores the flag if warn_only is set."""
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
