"""Axolotl's ringmaster as a peer: its Ulysses, its ring and its zigzag ring, without transformers.

ringmaster computes by the functions of flash_attn that transformers loads. It gets the same functions here, or their
stand-in (`peer_flash`), in place of transformers' table of attention functions. Its ring computes on GPUs alone.

Source: https://github.com/axolotl-ai-cloud/ringmaster, `strategies/ulysses.py`, `ring/p2p_attn.py`, `ring/zigzag.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import peer_flash
import torch
from peer_subjects import Case
from torch import Tensor

__all__ = ["ring_call", "ulysses_call"]

_Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def ulysses_call(case: Case) -> _Call:
    """Its Ulysses, from [B, T, H, D] to [B, T, H, D]."""
    ulysses: Any = importlib.import_module("ringmaster.strategies.ulysses")
    runtime = importlib.import_module("ringmaster.runtime")
    attend = _flash().flash_attn_func

    def inner(
        _module: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        _mask: None,
        dropout: float,
        scaling: float | None,
        is_causal: bool,
    ) -> tuple[Tensor, None]:
        by_token = (x.transpose(1, 2) for x in (q, k, v))
        return attend(*by_token, dropout_p=dropout, softmax_scale=scaling, causal=is_causal), None

    ulysses._resolve_inner = lambda _name: inner
    group = torch.distributed.group.WORLD
    runtime.set_runtime(runtime.CPRuntime(config=None, ulysses_group=group, cp_group=group))
    forward, module = ulysses.make_ulysses_attention("flash_attention_2"), torch.nn.Module()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = forward(module, *(x.transpose(1, 2) for x in (q, k, v)), None, is_causal=case.causal)[0]
        return out

    return call


def ring_call(case: Case) -> _Call:
    """Its ring, and for causal masks its zigzag ring, from [B, T, H, D] to [B, T, H, D]."""
    ring: Any = importlib.import_module("ringmaster.ring.p2p_attn")
    zigzag: Any = importlib.import_module("ringmaster.ring.zigzag")
    flash = _flash()
    ring._flash_ops = zigzag._flash_ops = lambda *_: (flash._flash_attn_forward, flash._flash_attn_backward)
    group = torch.distributed.group.WORLD

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        by_head = [x.transpose(1, 2) for x in (q, k, v)]
        out: Tensor = (
            zigzag.ZigzagRingAttention.apply(*by_head, group, None)
            if case.causal
            else ring.RingP2PAttention.apply(*by_head, group, False, None)
        )
        return out

    return call


def _flash() -> ModuleType:
    """The module of flash_attn's functions, or its stand-in."""
    return importlib.import_module("flash_attn.flash_attn_interface") if peer_flash.is_installed() else peer_flash
