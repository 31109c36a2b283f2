"""The functions of `flash_attn` that peers import, on FlashAttention-3's operators, for machines without the package.

yunchang and ring-flash-attn compute by private functions of `flash_attn.flash_attn_interface`, and ring-flash-attn
reads their parameters' names. `stand_in` puts this module in its place while peers are imported. The functions here
have the names, parameters and results of release 2.8. They call `torch.ops.flash_attn_3`, the operators of LongCA's
`fa3`.

Arguments that the peers leave at their defaults are refused at any other value: dropout, windows, softcap, ALiBi.

Source: flash_attn/flash_attn_interface.py of https://github.com/Dao-AILab/flash-attention. Its shapes are [B, T, H, D]
and [B, H, T] for the log-sum-exp, and with cu_seqlens [T, H, D] and [H, T].
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import readable

__all__ = ["flash_attn_func", "is_installed", "replaced", "stand_in"]

_VERSION = "2.8.3"  # peers choose by it between signatures
_PACKAGE, _INTERFACE = "flash_attn", "flash_attn.flash_attn_interface"


def is_installed() -> bool:
    """Whether the package itself is here. (flash-attn-4 alone makes `import flash_attn` succeed, without these.)"""
    try:
        return hasattr(importlib.import_module(_INTERFACE), "_flash_attn_forward")
    except ImportError:
        return False


@contextmanager
def replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Imports of these names find these modules while it lasts. A name with None counts as not installed."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules |= modules  # type: ignore[arg-type]  # import takes None
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules |= before


def stand_in() -> AbstractContextManager[None]:
    """While it lasts, who imports flash_attn gets this module's functions."""
    package = ModuleType(_PACKAGE)
    package.__spec__ = importlib.machinery.ModuleSpec(_PACKAGE, None, is_package=True)
    package.__path__ = []
    interface = sys.modules[__name__]
    vars(package).update(__version__=_VERSION, flash_attn_interface=interface, flash_attn_func=flash_attn_func)
    return replaced({_PACKAGE: package, _INTERFACE: interface})


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Differentiable attention of q [B, Tq, Hq, D] to k and v [B, Tk, Hkv, D]."""
    _refuse(dropout_p, *window_size, softcap, alibi_slopes, return_attn_probs)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    out: Tensor = _Attention.apply(q, k, v, scale, causal, deterministic)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, deterministic: bool) -> Tensor:
        out, lse = _forward(q, k, v, scale, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.about = scale, causal, deterministic
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        _backward(dout, q, k, v, out, lse, dq, dk, dv, *ctx.about)
        return dq, dk, dv, None, None, None


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, None, None]:
    """out [B, Tq, Hq, D], lse [B, Hq, Tq], and neither probabilities nor a state of dropout."""
    _refuse(dropout_p, window_size_left, window_size_right, softcap, alibi_slopes, return_softmax)
    return *_forward(q, k, v, softmax_scale, causal), None, None


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> None:
    """Fills dq, dk and dv. out and softmax_lse may belong to a larger softmax."""
    _refuse(dropout_p, window_size_left, window_size_right, softcap, alibi_slopes)
    _backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, causal, deterministic)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, None, None]:
    """out [Tq, Hq, D], lse [Hq, Tq], and neither probabilities nor a state of dropout."""
    _refuse(
        dropout_p, window_size_left, window_size_right, softcap, alibi_slopes, return_softmax, block_table, leftpad_k,
        seqused_k,
    )  # fmt: skip
    bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return *_forward(q, k, v, softmax_scale, causal, bounds), None, None


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> None:
    """Fills dq, dk and dv. out and softmax_lse may belong to a larger softmax."""
    _refuse(dropout_p, window_size_left, window_size_right, softcap, alibi_slopes)
    bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    _backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, softmax_scale, causal, deterministic, bounds)


def _refuse(dropout_p: float, left: int, right: int, softcap: float, *absent: object) -> None:
    if dropout_p or (left, right) != (-1, -1) or softcap or any(x is not None and x is not False for x in absent):
        raise NotImplementedError("what stands in for flash_attn has no dropout, window, softcap, ALiBi or paging")


#: cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k of documents; all None for a batch.
Bounds = tuple[Tensor | None, Tensor | None, int | None, int | None]
_DENSE: Bounds = (None, None, None, None)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, bounds: Bounds = _DENSE
) -> tuple[Tensor, Tensor]:
    """out and lse. causal is aligned to the bottom right."""
    out, lse, *_ = torch.ops.flash_attn_3.fwd(
        readable(q), readable(k), readable(v), out=None, **_arguments(scale, causal, bounds), num_splits=1
    )
    return out, lse


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: float,
    causal: bool,
    deterministic: bool,
    bounds: Bounds = _DENSE,
) -> None:
    """Fills dq, dk and dv."""
    torch.ops.flash_attn_3.bwd(
        *(readable(x) for x in (dout, q, k, v, out)),
        lse.contiguous(),
        dq,
        dk,
        dv,
        **_arguments(scale, causal, bounds),
        deterministic=deterministic,
    )


def _arguments(scale: float, causal: bool, bounds: Bounds) -> dict[str, Any]:
    """The arguments of both operators that are no tensors."""
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = bounds
    return {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "softmax_scale": scale,
        "is_causal": causal,
        "window_size_left": -1,
        "window_size_right": 0 if causal else -1,
    }
