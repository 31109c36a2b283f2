"""FlashAttention-2 from the `flash-attn` distribution, for `longca_flashattn.fa2`.

Unverified: the distribution is published only as source, and was not built for the measurements in the documentation.
Source: flash_attn/flash_attn_interface.py, version 2.8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca_flashattn.calls import Call

__all__ = ["FlashAttnPackage"]


class FlashAttnPackage:
    """The distribution's varlen functions. A call without documents becomes one document.

    Args:
        version: The distribution's version.
    """

    def __init__(self, version: str) -> None:
        from flash_attn import flash_attn_interface

        self.name = f"flash-attn {version}"
        self._interface: Any = flash_attn_interface

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
        """Returns out [Tq, Hq, D] and lse [Hq, Tq]."""
        out, lse, *_ = self._interface._flash_attn_varlen_forward(
            q, k, v, *_bounds(q, k, call), dropout_p=0.0, softmax_scale=scale, **_window(call)
        )
        return out, lse

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
        """Returns the gradients dq, dk and dv."""
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        self._interface._flash_attn_varlen_backward(
            *(dout, q, k, v, out, lse, dq, dk, dv),
            *_bounds(q, k, call),
            dropout_p=0.0,
            softmax_scale=scale,
            **_window(call),
            alibi_slopes=None,
            deterministic=deterministic,
        )
        return dq, dk, dv


def _bounds(q: Tensor, k: Tensor, call: Call) -> tuple[Tensor, Tensor, int, int]:
    cu_q, cu_k = call.cu_seqlens_q, call.cu_seqlens_k
    if cu_q is None or cu_k is None:
        cu_q, cu_k = (torch.tensor([0, len(x)], dtype=torch.int32, device=x.device) for x in (q, k))
    return cu_q, cu_k, call.max_seqlen_q, call.max_seqlen_k


def _window(call: Call) -> dict[str, Any]:
    return {"causal": call.causal, "window_size_left": call.left, "window_size_right": call.right, "softcap": 0.0}
