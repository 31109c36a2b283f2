"""FlashAttention-3, for Hopper: the operators of its own distribution, or those in the wheel of xFormers.

LongCA's kernels need an output buffer, and a backward that takes any out and lse. Neither distribution has a stable
Python interface for these. Both register the same operators, `torch.ops.flash_attn_3`, which have them.

Source: arXiv 2407.08608 and hopper/flash_api.cpp of https://github.com/Dao-AILab/flash-attention.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

import importlib_metadata
import torch
from torch import Tensor

from longca.errors import UnsupportedError
from longca.kernels.base import fill
from longca.manifests import Problem
from longca_flashattn.calls import Call, CallsKernel, CallsPlan

__all__ = ["FlashAttention3", "operators"]


class FlashAttention3(CallsKernel):
    """FlashAttention-3."""

    skips_rows = True
    joins_keys = True
    cuts_tensors = True

    def backend(self, problem: Problem) -> str:
        """The distribution whose operators run."""
        return operators()[1]

    def call_forward(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, plan: CallsPlan, out: Tensor | None, lse: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Runs one call. See `CallsKernel.call_forward`."""
        result, sums, *_ = operators()[0].fwd(
            *(call.batched(x) for x in (q, k, v)),
            out=call.batched(out) if out is not None and out.stride(-1) == 1 else None,
            **_arguments(call, plan),
            num_splits=1,
        )
        result = result.view(*q.shape[:2], -1)
        if out is None or out.stride(-1) != 1:
            result = fill(out, result)
        return result, fill(lse, sums.view(q.shape[1], q.shape[0]))

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
        grads = [
            buffer if buffer is not None and buffer.stride(-1) == 1 else torch.empty_like(x)
            for buffer, x in zip((dq, dk, dv), (q, k, v), strict=True)
        ]
        operators()[0].bwd(
            *(call.batched(x) for x in (dout, q, k, v, out, lse)),
            *(call.batched(x) for x in grads),
            **_arguments(call, plan),
            deterministic=plan.problem.deterministic,
        )
        first, second, third = (fill(buffer, grad) for grad, buffer in zip(grads, (dq, dk, dv), strict=True))
        return first, second, third


def _arguments(call: Call, plan: CallsPlan) -> dict[str, Any]:
    """The arguments for the mask and the problem that both operators take."""
    varlen = call.cu_seqlens_q is not None
    return {
        "cu_seqlens_q": call.cu_seqlens_q,
        "cu_seqlens_k": call.cu_seqlens_k,
        "seqused_q": call.seqused_q,
        "max_seqlen_q": call.max_seqlen_q if varlen else None,
        "max_seqlen_k": call.max_seqlen_k if varlen else None,
        "softmax_scale": plan.problem.scale,
        "is_causal": call.causal,
        "window_size_left": call.left,
        "window_size_right": call.right,
    }


@cache
def operators() -> tuple[Any, str]:
    """The operators' namespace and the distribution that brought it."""
    for name, load in (("flash-attn-3", _load_flash_attn_3), ("xformers", _load_xformers)):
        try:
            found = importlib_metadata.distribution(name)
        except importlib_metadata.PackageNotFoundError:
            continue
        load(found)
        return torch.ops.flash_attn_3, f"{name} {found.version}"
    raise UnsupportedError("fa3 found neither flash-attn-3 nor xformers. pip install --no-deps xformers==0.0.34")


def _load_flash_attn_3(found: Any) -> None:
    importlib.import_module("flash_attn_3._C")


def _load_xformers(found: Any) -> None:
    """Loads the one library without importing xFormers, which requires the exact torch that it was built with."""
    try:
        # The library is built for CUDA 12. A torch for CUDA 13 has not loaded that runtime.
        runtime = importlib_metadata.distribution("nvidia-cuda-runtime-cu12")
        ctypes.CDLL(str(runtime.locate_file("nvidia/cuda_runtime/lib/libcudart.so.12")), ctypes.RTLD_GLOBAL)
    except (importlib_metadata.PackageNotFoundError, OSError):
        pass  # a torch for CUDA 12 has loaded it. If nothing has, the next line raises.
    torch.ops.load_library(str(found.locate_file("xformers/flash_attn_3/_C.so")))
