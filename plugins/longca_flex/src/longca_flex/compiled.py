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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx.experimental import _config as shape_config
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from longca_flex.lists import SideLists
from longca_flex.tile_lists import KeptBlocks
from longca_flex.tiles import LARGE, SMALL

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import FlexKernelOptions

__all__ = ["BLOCK", "Bounds", "Seen", "backward", "compiling_once", "forward"]

#: Tokens of a block of queries and of keys. FlexAttention's tiles are made for this size.
BLOCK = LARGE

#: First key, and one past the last key, of each interval of each query, interval by interval: each int32 [Tq].
Bounds = tuple[Tensor, ...]

#: The keys that each token sees, as data.
Seen = Bounds | KeptBlocks

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
    q: Tensor, k: Tensor, v: Tensor, seen: Seen, by_query: SideLists, scale: float, small: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention of q to k and v.

    Args:
        q: [Tq / block, block, Hq, D].
        k: [Tk / block, block, Hkv, D].
        v: [Tk / block, block, Hkv, D].
        seen: The keys that each query sees.
        by_query: The key blocks that each query block visits.
        scale: Factor on the scores.
        small: Whether these blocks have 64 tokens instead of 128.

    Returns:
        out [Tq, Hq, D], and lse [Hq, Tq] as a natural logarithm.
    """
    q, k, v = (_heads_first(x) for x in (q, k, v))

    def mask_mod(_batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
        return _visible(head, q_index, k_index, seen)

    block_mask = _block_mask(q, k, by_query, None, mask_mod, SMALL if small else LARGE)
    out, aux = flex_attention(
        q,
        k,
        v,
        block_mask=block_mask,
        scale=scale,
        enable_gqa=True,
        kernel_options=_SMALL_OPTIONS if small else _OPTIONS,
        return_aux=AuxRequest(lse=True),
    )
    assert aux.lse is not None, "it was asked for"
    return _tokens_first(out), aux.lse.squeeze(0)


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
        small: Whether these blocks have 64 tokens instead of 128.

    Returns:
        dq [Tq, Hq, D], dk and dv [Tk, Hkv, D].
    """
    dout, q, k, v, out = (_heads_first(x) for x in (dout, q, k, v, out))
    dq, dk, dv = _operator(dout, q, k, v, out, log2_sum, seen, by_query, by_key, scale, small)
    return _tokens_first(dq), _tokens_first(dk), _tokens_first(dv)


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
    small: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """FlexAttention's backward operator, on tensors [1, H, T, D]. See `backward`."""
    block_mask = _block_mask(q, k, by_query, by_key, _kept if isinstance(seen, KeptBlocks) else _mask)
    dlse = None  # the log-sum-exp has no gradient
    options = _SMALL_BACKWARD_OPTIONS if small else _BACKWARD_OPTIONS
    tail = (block_mask.as_tuple(), scale, options, (), tuple(seen))
    dq, dk, dv, _ = torch.ops.higher_order.flex_attention_backward(
        q, k, v, out, log2_sum, dout, dlse, _score, _score_gradient, *tail
    )
    return dq, dk, dv


# Dynamo need not trace the operator's functions. How it would do that changes from version to version.
torch.compiler.allow_in_graph(_operator)


def _block_mask(
    q: Tensor,
    k: Tensor,
    by_query: SideLists,
    by_key: SideLists | None,
    mask_mod: Callable[..., Tensor],
    block: int = BLOCK,
) -> BlockMask:
    """The lists as a `BlockMask` for q and k [1, H, T, D]. It serves only a forward if by_key is None."""
    return BlockMask(
        seq_lengths=(q.shape[2], k.shape[2]),
        kv_num_blocks=by_query.num_partial,
        kv_indices=by_query.partial,
        full_kv_num_blocks=by_query.num_full,
        full_kv_indices=by_query.full,
        q_num_blocks=by_key.num_partial if by_key else None,
        q_indices=by_key.partial if by_key else None,
        full_q_num_blocks=by_key.num_full if by_key else None,
        full_q_indices=by_key.full if by_key else None,
        BLOCK_SIZE=(block, block),
        mask_mod=mask_mod,
    )


def _score(score: Tensor, *_where: Tensor) -> Tensor:
    return score


def _score_gradient(_score: Tensor, *where_and_gradient: Tensor) -> list[Tensor | None]:
    *where, gradient = where_and_gradient
    return [gradient, *(None for _ in where)]


def _mask(_batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor, *bounds: Tensor) -> Tensor:
    return _visible(head, q_index, k_index, bounds)


def _kept(_batch: Tensor, head: Tensor, q_index: Tensor, k_index: Tensor, *kept: Tensor) -> Tensor:
    return _visible(head, q_index, k_index, KeptBlocks(*kept))


def _visible(head: Tensor, q_index: Tensor, k_index: Tensor, seen: Seen) -> Tensor:
    """Whether a query sees a key: the key's block is kept, or the key is in one of the query's intervals."""
    if isinstance(seen, KeptBlocks):
        block = seen.blocks[k_index]
        byte = seen.bits[seen.heads[head] + seen.rows[q_index] + (block >> 3)].to(torch.int32)
        return ((byte << (block & 7)) & 128) != 0
    start, stop, *others = (bound[q_index] for bound in seen)
    found = (k_index >= start) & (k_index < stop)
    for start, stop in zip(others[::2], others[1::2], strict=True):
        found = found | ((k_index >= start) & (k_index < stop))
    return found


def _heads_first(x: Tensor) -> Tensor:
    """[T / block, block, H, D] → [1, H, T, D], a view."""
    return x.flatten(0, 1).transpose(0, 1).unsqueeze(0)


def _tokens_first(x: Tensor) -> Tensor:
    """[1, H, T, D] → [T, H, D], a view."""
    return x.squeeze(0).transpose(0, 1)
