"""The compiled functions: FlexAttention's forward by its public function, its backward by the operator below it.

The public function differentiates only its own forward, so a backward through it would compute the forward again. The
operator takes any out and log-sum-exp, including those of a larger softmax, and a part needs no more than these.
Weights are exp(score − lse), and their gradient is weight·(dout·v − dout·out). The operator counts lse in base 2
(torch/_higher_order_ops/flex_attention.py, `sdpa_dense_backward`).

One compilation serves every mask and length. The mask is data (lists with bounds or bits), and sizes are symbols.
Tokens come in blocks, [T / block, block, H, D], with a block of 128 if the lengths allow it. So the compiler knows that
a length is a multiple of 128 without knowing the length, and leaves the bounds checks out of its kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as shape_config
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from longca_flex.lists import SideLists
from longca_flex.pieces import (
    Seen,
    as_block_mask,
    capped_by,
    heads_first,
    in_intervals,
    in_kept_blocks,
    is_visible,
    tokens_first,
)
from longca_flex.tile_lists import KeptBlocks
from longca_flex.tiles import LARGE, SMALL

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import FlexKernelOptions

__all__ = ["backward", "compiling_once", "forward"]

# This turns off the kernel for fewer than 128 queries, which has no backward and would be compiled separately.
_OPTIONS: FlexKernelOptions = {"FORCE_USE_FLEX_ATTENTION": True}
# The public function adds these options before it calls the operator.
_BACKWARD_OPTIONS = {
    **_OPTIONS,
    "PRESCALE_QK": False,
    "ROWS_GUARANTEED_SAFE": False,
    "BLOCKS_ARE_CONTIGUOUS": False,
    "WRITE_DQ": True,
    "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}
# Options for tiles of 64. The default options for tiles of 128 do not divide them. A processor runs two at a time.
_SMALL_OPTIONS: FlexKernelOptions = {**_OPTIONS, "BLOCK_M": SMALL, "BLOCK_N": SMALL, "num_warps": 4, "num_stages": 3}
# Only these options give the sizes of the lists' blocks. The compiler compares the sizes of the `BlockMask` with its
# default tiles of 128, even if the options name others, and finds no kernel
# (torch/_inductor/kernel/flex/flex_attention.py).
_SMALL_BACKWARD_OPTIONS = {
    **_BACKWARD_OPTIONS,
    **dict.fromkeys(("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"), SMALL),
    **dict.fromkeys(("SPARSE_Q_BLOCK_SIZE", "SPARSE_KV_BLOCK_SIZE"), SMALL),
    "num_warps": 4,
    "num_stages": 2,
}
_MOST_VARIANTS = 4096  # limit on the shapes of heads, dtypes and scales in one process


class _Settings(threading.local):
    """Settings that compile once. They are made once a thread, because making them takes as long as a guard check."""

    def __init__(self) -> None:
        limits: dict[str, Any] = {"recompile_limit": _MOST_VARIANTS, "accumulated_recompile_limit": 2 * _MOST_VARIANTS}
        self.dynamo = torch._dynamo.config.patch(specialize_float=True, **limits)
        self.shapes = shape_config.patch(use_duck_shape=False)  # type: ignore[attr-defined]  # installed at import


_SETTINGS = _Settings()


@contextmanager
def compiling_once() -> Iterator[None]:
    """Settings that keep each size a symbol of its own and each number a constant."""
    with torch.no_grad(), _SETTINGS.dynamo, _SETTINGS.shapes:
        yield


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Seen,
    by_query: SideLists,
    scale: float,
    softcap: float | None = None,
    small: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of q to k and v.

    Args:
        q: [Tq / block, block, Hq, D].
        k: [Tk / block, block, Hkv, D].
        v: [Tk / block, block, Hkv, D].
        seen: The keys that each query sees.
        by_query: The key blocks that each query block visits.
        scale: Factor on the scores.
        softcap: Bound on the scores, or None.
        small: Whether these blocks have 64 tokens instead of 128.

    Returns:
        out [Tq, Hq, D], and lse [Hq, Tq] as a natural logarithm.
    """
    q, k, v = (heads_first(x) for x in (q, k, v))

    def mask_mod(_batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
        return is_visible(head, q_index, k_index, seen)

    block_mask = as_block_mask(q, k, by_query, None, mask_mod, SMALL if small else LARGE)
    out, aux = flex_attention(
        q,
        k,
        v,
        score_mod=None if softcap is None else capped_by(softcap)[0],
        block_mask=block_mask,
        scale=scale,
        enable_gqa=True,
        kernel_options=_SMALL_OPTIONS if small else _OPTIONS,
        return_aux=AuxRequest(lse=True),
    )
    assert aux.lse is not None, "it was asked for"
    return tokens_first(out), aux.lse.squeeze(0)


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log2_sum: Tensor,
    seen: Seen,
    by_query: SideLists,
    by_key: SideLists,
    scale: float,
    softcap: float | None = None,
    small: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v.

    Args:
        dout: Gradient of the output: [Tq / block, block, Hq, D].
        q: [Tq / block, block, Hq, D].
        k: [Tk / block, block, Hkv, D].
        v: [Tk / block, block, Hkv, D].
        out: The output, or the output of a larger softmax: [Tq / block, block, Hq, D].
        log2_sum: The log-sum-exp that belongs to `out`, in base 2: [1, Hq, Tq], contiguous.
        seen: The keys that each query sees.
        by_query: The key blocks that each query block visits.
        by_key: The query blocks that each key block visits.
        scale: Factor on the scores.
        softcap: Bound on the scores, or None.
        small: Whether these blocks have 64 tokens instead of 128.

    Returns:
        dq [Tq, Hq, D], dk and dv [Tk, Hkv, D].
    """
    dout, q, k, v, out = (heads_first(x) for x in (dout, q, k, v, out))
    dq, dk, dv = _operator(dout, q, k, v, out, log2_sum, seen, by_query, by_key, scale, softcap, small)
    return tokens_first(dq), tokens_first(dk), tokens_first(dv)


def _operator(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log2_sum: Tensor,
    seen: Seen,
    by_query: SideLists,
    by_key: SideLists,
    scale: float,
    softcap: float | None = None,
    small: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """FlexAttention's backward operator, on tensors [1, H, T, D]. See `backward`."""
    block_mask = as_block_mask(q, k, by_query, by_key, in_kept_blocks if isinstance(seen, KeptBlocks) else in_intervals)
    dlse = None  # the log-sum-exp has no gradient
    options = _SMALL_BACKWARD_OPTIONS if small else _BACKWARD_OPTIONS
    tail = (block_mask.as_tuple(), scale, options, (), tuple(seen))
    dq, dk, dv, _ = torch.ops.higher_order.flex_attention_backward(
        q, k, v, out, log2_sum, dout, dlse, *capped_by(softcap), *tail
    )
    return dq, dk, dv


# Dynamo need not trace the operator's functions. How it would do that changes from version to version.
torch.compiler.allow_in_graph(_operator)
