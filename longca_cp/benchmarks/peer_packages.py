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
https://github.com/zhuzilin/ring-flash-attention, https://github.com/axolotl-ai-cloud/ringmaster (`peer_ringmaster`),
and torch.distributed.tensor.experimental of PyTorch, which computes by cuDNN on GPUs alone. MagiAttention is no peer:
its release on PyPI (0.0.1) is an empty package, and its repository builds CUDA extensions of its own.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from peer_flash import is_installed, replaced, stand_in
from peer_ranks import Ranks
from peer_ringmaster import ring_call, ulysses_call
from peer_subjects import Case, Subject
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import longca
from longca.manifests import Layout, Problem, installed_version
from longca_bench.suites.meshes import equal_mesh

__all__ = ["PEERS", "Peer", "flash_attn"]

_PACKAGES = {
    "yunchang": "yunchang",
    "ring-flash-attn": "ring_flash_attn",
    "axolotl-ringmaster": "ringmaster",
    "torch": "torch.distributed.tensor.experimental._attention",
}
_HEADS_K_STRIDE = 4  # KV heads that the Llama 3 function gathers at a time in its repository's own benchmark


@dataclass(frozen=True)
class Peer:
    """A peer.

    Attributes:
        name: Its name.
        peer_of: Our strategy that does the same.
        distribution: The distribution to install.
        prepare: Makes a subject for a case from its package.
    """

    name: str
    peer_of: str
    distribution: str
    prepare: Callable[[Peer, ModuleType, Case], Subject]

    def ready(self, case: Case) -> Subject:
        """The peer as a subject.

        Raises:
            Exception: Any error of importing its package.
        """
        package = _imported(self.distribution)
        return self.prepare(self, package, case)

    def unavailable(self, ranks: Ranks) -> str | None:
        """The reason why it cannot be measured on these ranks, or None."""
        if ranks.device.type == "cpu":
            return f"{self.name} computes on GPUs alone"
        return ranks.attempt(lambda: _imported(self.distribution))[1]


def flash_attn(problem: Problem) -> str:
    """The package that the peers compute by. Its stand-in is loaded if it is missing.

    Args:
        problem: A problem that our fa3 takes.
    """
    if is_installed():
        return f"flash-attn {installed_version('flash-attn')}"
    return f"FA3 operators in place of it ({longca.registry().load('fa3').backend(problem)})"


@cache
def _imported(distribution: str) -> ModuleType:
    """A peer's package, with flash_attn or its stand-in, and without other imports.

    yunchang imports FlashInfer if it is installed, and ring-flash-attn's adapters for Hugging Face's models import
    transformers.
    """
    adapters = ModuleType("ring_flash_attn.adapters")
    vars(adapters).update(substitute_hf_flash_attn=None, update_ring_flash_attn_params=None)
    with nullcontext() if is_installed() else stand_in(), replaced({"flashinfer": None, adapters.__name__: adapters}):
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
    layout = case.layout("ulysses", {"ulysses": case.ranks.size}, "contiguous")
    return Subject(peer.name, case, layout, ulysses_call(case), peer_of=peer.peer_of)


def _ringmaster_ring(peer: Peer, _package: ModuleType, case: Case) -> Subject:
    about = {"function": "ZigzagRingAttention" if case.causal else "RingP2PAttention"}
    return Subject(peer.name, case, _on_ring(case), ring_call(case), peer_of=peer.peer_of, about=about)


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
        return Subject(*made, peer_of=peer.peer_of, form="BHTD", within=within, about=about)

    return prepare


def _on_ring(case: Case) -> Layout:
    """Zigzag where the mask is causal, as these peers balance it."""
    return case.layout("ring_p2p", {"ring": case.ranks.size}, "zigzag" if case.causal else "contiguous")


def _causally(function: Callable[..., Tensor], case: Case) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
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
