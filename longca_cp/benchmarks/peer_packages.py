"""Peers: other people's context parallelism, each with the strategy of ours that does the same.

| peer | peer of | full | causal |
|---|---|---|---|
| `yunchang ulysses` | `ulysses` | `UlyssesAttention` | the same |
| `yunchang usp` | `usp` | `LongContextAttention`, `basic` | `zigzag` |
| `ring-flash-attn ring` | `ring_p2p` | `ring_flash_attn_func` | `zigzag_ring_flash_attn_func` |
| `ring-flash-attn llama3` | `ring_all_gather` | `llama3_flash_attn_varlen_func`, contiguous | the same |
| `ringmaster ulysses` | `ulysses` | `make_ulysses_attention` | the same |
| `ringmaster ring` | `ring_p2p` | `RingP2PAttention` | `ZigzagRingAttention` |
| `torch alltoall` | `ring_p2p` | `context_parallel`, contiguous | the same, head-tail balanced |
| `torch allgather` | `ring_all_gather` | likewise | likewise |

Sources: https://github.com/feifeibear/long-context-attention (arXiv 2405.07719),
https://github.com/zhuzilin/ring-flash-attention, https://github.com/axolotl-ai-cloud/ringmaster,
and torch.distributed.tensor.experimental of PyTorch, which computes by cuDNN on GPUs alone. The other peers compute by
the package flash_attn. MagiAttention is no peer: its release on PyPI (0.0.1) is an empty package.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from peer_subjects import Case, Ranks, Subject
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longca.manifests import Layout
from longca_bench.suites.meshes import equal_mesh

__all__ = ["PEERS", "Peer"]

_PACKAGES = {
    "yunchang": "yunchang",
    "ring-flash-attn": "ring_flash_attn",
    "axolotl-ringmaster": "ringmaster",
    "torch": "torch.distributed.tensor.experimental._attention",
}
_HEADS_K_STRIDE = 4  # KV heads that the Llama 3 function gathers at a time in its repository's own benchmark

_Call = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A peer."""

    name: str
    peer_of: str  # our strategy that does the same
    distribution: str
    prepare: Callable[[Peer, ModuleType, Case], Subject]

    def ready(self, case: Case) -> Subject:
        """The peer as a subject. It raises any error of importing its package."""
        return self.prepare(self, _imported(self.distribution), case)

    def unavailable(self, ranks: Ranks) -> str | None:
        """The reason why it cannot be measured on these ranks, or None."""
        if ranks.device.type == "cpu":
            return f"{self.name} computes on GPUs alone"
        return ranks.attempt(lambda: _imported(self.distribution))[1]


@cache
def _imported(distribution: str) -> ModuleType:
    """A peer's package, without FlashInfer, which yunchang imports, and without ring-flash-attn's adapters for
    transformers.
    """
    adapters = ModuleType("ring_flash_attn.adapters")
    vars(adapters).update(substitute_hf_flash_attn=None, update_ring_flash_attn_params=None)
    with mock.patch.dict("sys.modules", {"flashinfer": None, adapters.__name__: adapters}):
        return importlib.import_module(_PACKAGES[distribution])


def _yunchang_ulysses(peer: Peer, package: ModuleType, case: Case) -> Subject:
    layer = package.UlyssesAttention(torch.distributed.group.WORLD, attn_type=_attn_type())
    layout = case.layout("ulysses", {"ulysses": case.ranks.size}, "contiguous")
    return Subject(peer.name, case, layout, _causally(layer, case), peer_of=peer.peer_of)


def _yunchang_usp(peer: Peer, package: ModuleType, case: Case) -> Subject:
    ring, ulysses = equal_mesh(case.ranks.size, 2)
    _groups(package, ring, ulysses, case.ranks)
    way = "zigzag" if case.causal else "basic"
    layer = package.LongContextAttention(ring_impl_type=way, attn_type=_attn_type())
    layout = case.layout("usp", {"ring": ring, "ulysses": ulysses}, "zigzag" if case.causal else "contiguous")
    about = {"ring_impl_type": way, "mesh": f"ring={ring},ulysses={ulysses}"}
    return Subject(peer.name, case, layout, _causally(layer, case), peer_of=peer.peer_of, about=about)


@cache
def _groups(package: ModuleType, ring: int, ulysses: int, ranks: Ranks) -> None:
    """Makes the groups that layers made after it use."""
    package.set_seq_parallel_pg(ulysses, ring, ranks.rank, ranks.size)


def _attn_type() -> Any:
    """The functions of flash_attn. The functions for FlashAttention-3's package ignore causal."""
    return importlib.import_module("yunchang.kernels").AttnType.FA


def _ring(peer: Peer, package: ModuleType, case: Case) -> Subject:
    function = package.zigzag_ring_flash_attn_func if case.causal else package.ring_flash_attn_func
    layout = _on_ring(case)
    about = {"function": function.__name__}
    return Subject(peer.name, case, layout, _causally(function, case), peer_of=peer.peer_of, about=about)


def _llama3(peer: Peer, package: ModuleType, case: Case) -> Subject:
    ranks, problem = case.ranks, case.problem
    bounds = torch.tensor([0, problem.concrete_mask.seqlen_q], dtype=torch.int32, device=ranks.device)
    *places, local_k_slice = package.llama3_flash_attn_prepare_cu_seqlens(bounds, case.causal, ranks.rank, ranks.size)
    stride = math.gcd(_HEADS_K_STRIDE, problem.num_heads_kv)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = package.llama3_flash_attn_varlen_func(
            q, k, v, *places, heads_k_stride=stride, local_k_slice=local_k_slice, causal=case.causal
        )
        return out

    layout = case.layout("ring_all_gather", {"ring": ranks.size}, "contiguous")
    about = {"heads_k_stride": stride}
    return Subject(peer.name, case, layout, call, peer_of=peer.peer_of, form="THD", about=about)


def _ringmaster_ulysses(peer: Peer, _package: ModuleType, case: Case) -> Subject:
    """Its Ulysses without transformers, on the functions of flash_attn."""
    ulysses: Any = importlib.import_module("ringmaster.strategies.ulysses")
    runtime = importlib.import_module("ringmaster.runtime")
    attend = importlib.import_module("flash_attn.flash_attn_interface").flash_attn_func

    def inner(
        _module: Any, q: Tensor, k: Tensor, v: Tensor, _mask: None, dropout: float, scaling: float, is_causal: bool
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

    layout = case.layout("ulysses", {"ulysses": case.ranks.size}, "contiguous")
    return Subject(peer.name, case, layout, call, peer_of=peer.peer_of)


def _ringmaster_ring(peer: Peer, _package: ModuleType, case: Case) -> Subject:
    ring: Any = importlib.import_module("ringmaster.ring.p2p_attn")
    zigzag: Any = importlib.import_module("ringmaster.ring.zigzag")
    flash: Any = importlib.import_module("flash_attn.flash_attn_interface")
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

    about = {"function": "ZigzagRingAttention" if case.causal else "RingP2PAttention"}
    return Subject(peer.name, case, _on_ring(case), call, peer_of=peer.peer_of, about=about)


def _torch(rotation: str) -> Callable[[Peer, ModuleType, Case], Subject]:
    """PyTorch's, with one of its ways to pass keys and values on."""

    def prepare(peer: Peer, package: ModuleType, case: Case) -> Subject:
        seqlen, device = case.problem.concrete_mask.seqlen_q, case.ranks.device
        mesh = case.ranks.mesh((("ring", case.ranks.size),))

        @contextmanager
        def within() -> Iterator[None]:
            package.set_rotate_method(rotation)
            package._cp_options.enable_load_balance = case.causal  # it takes no other mask balanced
            positions = torch.arange(seqlen, device=device)  # of a model's buffers it wants at least one to shard
            shards = package.context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0])
            with shards, sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                yield

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # By its full name: that is where it is replaced.
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.causal, enable_gqa=case.problem.is_gqa
            )

        about = {"rotation": rotation, "backend": "cudnn"}
        made = peer.name, case, _on_ring(case), call
        return Subject(*made, peer_of=peer.peer_of, form="BHTD", around=within, about=about)

    return prepare


def _on_ring(case: Case) -> Layout:
    """Zigzag where the mask is causal, as these peers balance it."""
    return case.layout("ring_p2p", {"ring": case.ranks.size}, "zigzag" if case.causal else "contiguous")


def _causally(function: Callable[..., Tensor], case: Case) -> _Call:
    return lambda q, k, v: function(q, k, v, causal=case.causal)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("yunchang ulysses", "ulysses", "yunchang", _yunchang_ulysses),
        Peer("yunchang usp", "usp", "yunchang", _yunchang_usp),
        Peer("ring-flash-attn ring", "ring_p2p", "ring-flash-attn", _ring),
        Peer("ring-flash-attn llama3", "ring_all_gather", "ring-flash-attn", _llama3),
        Peer("ringmaster ulysses", "ulysses", "axolotl-ringmaster", _ringmaster_ulysses),
        Peer("ringmaster ring", "ring_p2p", "axolotl-ringmaster", _ringmaster_ring),
        Peer("torch alltoall", "ring_p2p", "torch", _torch("alltoall")),
        Peer("torch allgather", "ring_all_gather", "torch", _torch("allgather")),
    )
}
