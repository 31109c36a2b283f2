"""flex_flash: FlexAttention with FlashAttention-4 in place of its Triton kernels.

The block lists and the mask function of intervals are those of `flex`. FlashAttention-4 has tiles of 128 × 128, and it
reads lists with exactly one row a tile. It asks the mask function about queries up to the edge of the last tile.

Source: torch/_inductor/kernel/flex/flex_flash_attention.py, and `_flash_attn_fwd` and `_flash_attn_bwd` of
flash_attn/cute/interface.py of https://github.com/Dao-AILab/flash-attention.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from longca import Problem
from longca_flex import compiled_flash
from longca_flex.flex import Flex, FlexPlan, plan_intervals
from longca_flex.pieces import BLOCK

__all__ = ["FlexFlash"]

_ALIGNMENT = 16  # bytes that are loaded at once


class FlexFlash(Flex):
    """FlexAttention with the backend FLASH.

    Args:
        backend: The compiler, as for `Flex`.
    """

    def __init__(self, backend: str | Callable[..., Any] = "inductor") -> None:
        # The compiler warns about the unknown type of an unused argument. `warnings.catch_warnings` around each call
        # would put back the filters of all threads.
        warnings.filterwarnings("ignore", message="Argument aux_data")
        super().__init__(backend, compiled_flash.forward, compiled_flash.backward)

    def plan(self, problem: Problem) -> FlexPlan:
        """Puts the block lists and the row intervals on the device."""
        plan = plan_intervals(problem, least=1)
        plan.backend = "flex_attention, FLASH"
        plan.seen = tuple(pad(bound, (0, -len(bound) % BLOCK)) for bound in plan.seen)
        return plan

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: FlexPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v. See `longca.kernels.base.Kernel.forward`."""
        return super().forward(_loadable(q), _loadable(k), _loadable(v), plan, out=out, lse=lse)

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
        dout, q, k, v, out = (_loadable(x) for x in (dout, q, k, v, out))
        return super().backward(dout, q, k, v, out, lse, plan, dq=dq, dk=dk, dv=dv)

    def _sums(self, lse: Tensor) -> Tensor:
        return lse.contiguous().unsqueeze(0)


def _loadable(x: Tensor) -> Tensor:
    """A tensor whose rows begin at aligned addresses: itself, or a contiguous copy."""
    apart = (x.data_ptr(), *(stride * x.element_size() for stride in x.stride()[:2]))
    in_place = x.stride(2) == 1 and all(place % _ALIGNMENT == 0 for place in apart)
    return x if in_place else x.clone(memory_format=torch.contiguous_format)
