"""FlashAttention-4's two functions, imported at the first call, and the preparations that they leave to the caller."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import importlib_metadata
import torch
from torch import Tensor

from longca.kernels.base import fill

__all__ = ["capping", "flash_backward", "flash_backward_with_sinks", "flash_forward", "version"]


@cache
def version() -> str:
    """The installed version of flash-attn-4."""
    return importlib_metadata.version("flash-attn-4")


@cache
def _interface() -> Any:
    # The compiler warns about the unknown type of an unused argument. `warnings.catch_warnings` around each call would
    # put back the filters of all threads.
    warnings.filterwarnings("ignore", message="Argument aux_data")
    from flash_attn.cute import interface

    return interface


@cache
def capping(softcap: float | None, *, backward: bool = False) -> dict[str, Any]:
    """The arguments of FlashAttention-4's functions that cap scores. It would hash the functions anew in each call."""
    if softcap is None:
        return {}
    from flash_attn.cute import utils

    mods = {"score_mod": utils.create_softcap_scoremod(softcap)}
    return mods | {"score_mod_bwd": utils.create_softcap_scoremod_bwd(softcap)} if backward else mods


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None, lse: Tensor | None, **arguments: Any
) -> tuple[Tensor, Tensor]:
    """Calls `_flash_attn_fwd`.

    Args:
        q: [1, Tq, Hq, D], or [Tq, Hq, D] with cu_seqlens.
        k: [1, Tk, Hkv, D], or [Tk, Hkv, D] with cu_seqlens.
        v: [1, Tk, Hkv, D], or [Tk, Hkv, D] with cu_seqlens.
        out: Buffer for the output, or None.
        lse: Buffer for the log-sum-exp, [1, Hq, Tq] or [Hq, Tq], or None.
        arguments: All other arguments of the function.

    Returns:
        out [Tq, Hq, D] and lse [Hq, Tq].
    """
    results = _interface()._flash_attn_fwd(q, k, v, out=_plain(out), lse=_plain(lse), return_lse=True, **arguments)
    first, second = (fill(given, result) for given, result in zip((out, lse), results[:2], strict=True))
    return first.view(first.shape[-3:]), second.view(second.shape[-2:])


def flash_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    **arguments: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Calls `_flash_attn_bwd`. The shapes are those of `flash_forward`.

    Returns:
        dq [Tq, Hq, D], dk and dv [Tk, Hkv, D].
    """
    given = (dq, dk, dv)
    plain = [_plain(buffer) for buffer in given]
    results = _interface()._flash_attn_bwd(q, k, v, out, dout, lse, dq=plain[0], dk=plain[1], dv=plain[2], **arguments)
    first, second, third = (fill(buffer, result) for buffer, result in zip(given, results, strict=True))
    return first.view(first.shape[-3:]), second.view(second.shape[-3:]), third.view(third.shape[-3:])


def flash_backward_with_sinks(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor, **arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Calls `_flash_attn_bwd` with float32 sinks [Hq]. It returns their gradient too, by the kernel's own row sums."""
    *grads, dsinks = _interface()._flash_attn_bwd(q, k, v, out, dout, lse, learnable_sink=sinks, **arguments)
    dq, dk, dv = (x.view(x.shape[-3:]) for x in grads)
    return dq, dk, dv, dsinks


def _plain(buffer: Tensor | None) -> Tensor | None:
    """The buffer if the kernels can write it (aligned, and contiguous from its last dimension on), else a new one."""
    if buffer is None:
        return None
    return buffer if buffer.is_contiguous() else torch.empty_like(buffer, memory_format=torch.contiguous_format)
