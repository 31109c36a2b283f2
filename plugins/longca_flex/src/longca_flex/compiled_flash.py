"""The compiled functions of flex_flash: FlexAttention's operators with the backend FLASH.

PyTorch writes the mask function in the CuTe DSL and gives it to FlashAttention-4 with the lists of a `BlockMask`.
FlashAttention-4 counts the log-sum-exp in base e, and the Triton kernels count it in base 2. PyTorch 2.11's public
function takes base 2 for granted. The operators below it return and take the log-sum-exp as it is.

Source: torch/_inductor/kernel/flex/flex_flash_attention.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca_flex.lists import SideLists
from longca_flex.pieces import (
    Bounds,
    as_block_mask,
    heads_first,
    in_intervals,
    same_gradient,
    same_score,
    tokens_first,
)

__all__ = ["backward", "forward"]

# The public function adds all options but the backend before it calls the operator.
_OPTIONS: dict[str, Any] = {
    "BACKEND": "FLASH",
    "PRESCALE_QK": False,
    "ROWS_GUARANTEED_SAFE": False,
    "BLOCKS_ARE_CONTIGUOUS": False,
    "WRITE_DQ": True,
    "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}


def forward(
    q: Tensor, k: Tensor, v: Tensor, bounds: Bounds, by_query: SideLists, scale: float, *_others: object
) -> tuple[Tensor, Tensor]:
    """Attention of q to k and v. See `longca_flex.compiled.forward`."""
    q, k, v = (heads_first(x) for x in (q, k, v))
    out, lse = _attention(q, k, v, bounds, by_query, scale)
    return tokens_first(out), lse.squeeze(0)


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Bounds,
    by_query: SideLists,
    by_key: SideLists,
    scale: float,
    *_others: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v. See `longca_flex.compiled.backward`. lse is a natural logarithm: [1, Hq, Tq]."""
    dout, q, k, v, out = (heads_first(x) for x in (dout, q, k, v, out))
    dq, dk, dv = _gradients(dout, q, k, v, out, lse, bounds, by_query, by_key, scale)
    return tokens_first(dq), tokens_first(dk), tokens_first(dv)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: Bounds, by_query: SideLists, scale: float
) -> tuple[Tensor, Tensor]:
    """FlexAttention's operator, on tensors [1, H, T, D]."""
    block_mask = as_block_mask(q, k, by_query, None, in_intervals)
    tail = (block_mask.as_tuple(), scale, _OPTIONS, (), tuple(bounds))
    out, lse, *_ = torch.ops.higher_order.flex_attention(q, k, v, same_score, *tail)
    return out, lse


def _gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Bounds,
    by_query: SideLists,
    by_key: SideLists,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """FlexAttention's backward operator, on tensors [1, H, T, D]."""
    block_mask = as_block_mask(q, k, by_query, by_key, in_intervals)
    dlse = None  # the log-sum-exp has no gradient
    tail = (block_mask.as_tuple(), scale, _OPTIONS, (), tuple(bounds))
    dq, dk, dv, _ = torch.ops.higher_order.flex_attention_backward(
        q, k, v, out, lse, dout, dlse, same_score, same_gradient, *tail
    )
    return dq, dk, dv


# Dynamo need not trace the functions of the operators, as in `longca_flex.compiled`.
torch.compiler.allow_in_graph(_attention)
torch.compiler.allow_in_graph(_gradients)
