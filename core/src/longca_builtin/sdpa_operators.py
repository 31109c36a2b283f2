"""PyTorch's fused attention operators, each as a forward that returns lse and a backward that takes one.

Tensors are [1, H, T, D], the bias [1, 1 or H, Sq, Sk], lse [1, H, Tq]. torch.nn.functional.scaled_dot_product_attention
dispatches to these operators.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["OPERATORS", "Operator"]

aten = torch.ops.aten

#: q, k and v, and their gradients.
Three = tuple[Tensor, Tensor, Tensor]


class Operator(Protocol):
    """One fused attention."""

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """Out [1, H, Tq, D], and lse [1, H, at least Tq]."""

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """Gradients of q, k and v."""


class CPUFlash:
    """The fused CPU kernel. It takes GQA and any bias.

    In half precision its backward adds dk and dv up in that precision, over all heads of a group and all blocks of
    queries: with 8 heads for each KV head they miss the limits of `longca verify` from about 2048 tokens on. So a
    backward in half precision is computed in float32, which also takes less time in float16 (PyTorch 2.13). Its bias is
    in float32, which a forward takes too.
    """

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """See `Operator.forward`."""
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, is_causal, attn_mask=bias, scale=scale)
        return out, lse

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """See `Operator.backward`."""
        wide = torch.promote_types(dout.dtype, torch.float32)
        tensors = [x.to(wide) for x in (dout, *qkv, out)]
        dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, lse, 0.0, is_causal, attn_mask=bias, scale=scale
        )
        return dq.to(dout.dtype), dk.to(dout.dtype), dv.to(dout.dtype)


class CUDAFlash:
    """FlashAttention-2 as PyTorch builds it. It takes GQA and no bias."""

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """See `Operator.forward`."""
        assert bias is None
        out, lse, *_ = aten._scaled_dot_product_flash_attention(*qkv, 0.0, is_causal, False, scale=scale)
        return out, lse

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """See `Operator.backward`."""
        q, k, _ = qkv
        lengths = None, None, q.shape[2], k.shape[2]
        no_dropout = torch.empty(0, dtype=torch.int64, device=q.device)
        dropout = 0.0, is_causal, no_dropout, no_dropout
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
            dout, *qkv, out, lse.contiguous(), *lengths, *dropout, scale=scale
        )
        return dq, dk, dv


class CUDAEfficient:
    """xFormers' memory-efficient kernel as PyTorch builds it. It takes a bias, and as many KV heads as query heads.

    Fewer KV heads are repeated, and their gradients summed.
    """

    _LSE_ALIGNMENT = 32  # queries: lse comes and goes padded to whole warps

    def forward(self, qkv: Three, bias: Tensor | None, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        """See `Operator.forward`."""
        out, lse, *_ = aten._scaled_dot_product_efficient_attention(
            *_repeat(qkv), _expand(bias, qkv[0]), True, 0.0, is_causal, scale=scale
        )
        return out, lse

    def backward(
        self, dout: Tensor, qkv: Three, out: Tensor, lse: Tensor, bias: Tensor | None, is_causal: bool, scale: float
    ) -> Three:
        """See `Operator.backward`."""
        q, k, v = qkv
        no_dropout = torch.empty((), dtype=torch.int64, device=q.device)
        dropout = no_dropout, no_dropout, 0.0, [True, True, True, False], is_causal
        # The operator reads the rows of out as those of a contiguous [1, Tq, H, D], and ignores its strides.
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % self._LSE_ALIGNMENT))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward(
            dout, *_repeat(qkv), _expand(bias, q), out, lse, *dropout, scale=scale
        )
        return dq, _sum_repeats(dk, k), _sum_repeats(dv, v)


def _repeat(qkv: Three) -> Three:
    """The tensors with a KV head for each query head."""
    q, k, v = qkv
    if k.shape[1] == q.shape[1]:
        return qkv
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return q, k, v


def _sum_repeats(grad: Tensor, x: Tensor) -> Tensor:
    return grad if grad.shape == x.shape else grad.unflatten(1, (x.shape[1], -1)).sum(2)


def _expand(bias: Tensor | None, q: Tensor) -> Tensor | None:
    return None if bias is None else bias.expand(-1, q.shape[1], -1, -1)


OPERATORS: dict[str, Operator] = {
    "cpu_flash": CPUFlash(),
    "flash": CUDAFlash(),
    "efficient": CUDAEfficient(),
}
