"""FlashAttention-2: PyTorch's operators, or the functions of the `flash-attn` distribution if it is installed.

Source: arXiv 2307.08691, csrc/flash_attn/flash_api.cpp of https://github.com/Dao-AILab/flash-attention, and
aten/src/ATen/native/transformers/cuda/attention.cu of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol

import importlib_metadata
import torch
from torch import Tensor

from longca.kernels.base import fill
from longca.manifests import Problem
from longca_flashattn.calls import Call, CallsKernel, CallsPlan

__all__ = ["FlashAttention2"]


class _Functions(Protocol):
    """The two functions of FlashAttention-2, from either library."""

    name: str

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
        """Returns out [Tq, Hq, D] and lse [Hq, Tq]."""

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        call: Call,
        scale: float,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns dq, dk and dv."""


class FlashAttention2(CallsKernel):
    """FlashAttention-2."""

    def backend(self, problem: Problem) -> str:
        """The library whose functions run."""
        return _functions().name

    def call_forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, plan: CallsPlan, out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs one call. See `CallsKernel.call_forward`."""
        result, sums = _functions().forward(q, k, v, call, plan.problem.scale)
        return fill(out, result), fill(lse, sums)

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
        problem = plan.problem
        grads = _functions().backward(dout, q, k, v, out, lse, call, problem.scale, problem.deterministic)
        first, second, third = (fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))
        return first, second, third


@cache
def _functions() -> _Functions:
    try:
        # The check asks for the distribution, because flash-attn-4 alone makes `import flash_attn` succeed.
        version = importlib_metadata.version("flash-attn")
    except importlib_metadata.PackageNotFoundError:
        return _PyTorch()
    from longca_flashattn.fa2_package import FlashAttnPackage

    return FlashAttnPackage(version)


class _PyTorch:
    """PyTorch's operators."""

    name = f"torch {torch.__version__}"

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            *(call.batched(x) for x in (q, k, v)),
            call.cu_seqlens_q,
            call.cu_seqlens_k,
            call.max_seqlen_q,
            call.max_seqlen_k,
            0.0,  # dropout
            call.causal,
            False,  # return the dropout's mask
            scale=scale,
            **_window(call),
        )
        return out.view(q.shape), lse.view(q.shape[1], q.shape[0])

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        call: Call,
        scale: float,
        deterministic: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        no_dropout = torch.empty(2, dtype=torch.uint64, device=q.device)
        with _determinism(deterministic):
            dq, dk, dv = torch.ops.aten._flash_attention_backward(
                *(call.batched(x) for x in (dout, q, k, v, out, lse)),
                call.cu_seqlens_q,
                call.cu_seqlens_k,
                call.max_seqlen_q,
                call.max_seqlen_k,
                0.0,
                call.causal,
                no_dropout,
                no_dropout,
                scale=scale,
                **_window(call),
            )
        return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)


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
