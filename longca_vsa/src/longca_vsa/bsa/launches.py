"""The launches of bsa: one kernel each, over a plan's programs.

Shapes: q, out and dout [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq]. Inputs and results have a contiguous last
dimension, and any strides over tokens and heads.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from longca_triton.config import Config
from longca_triton.descriptors import sources, strides, vector_sources
from longca_triton.launching import launch_kernel
from longca_triton.prepare import launch_prepare
from longca_vsa.bsa.configs import heads_in_cache
from longca_vsa.bsa.dkdv import gather_dkdv
from longca_vsa.bsa.dq import gather_dq
from longca_vsa.bsa.forward import attend
from longca_vsa.bsa.lists import Lists
from longca_vsa.bsa.plan import BSAPlan
from longca_vsa.bsa.tables import Tiles

__all__ = [
    "DkdvLaunch",
    "dkdv_launch",
    "heads_a_launch",
    "launch_attend",
    "launch_dkdv",
    "launch_dq",
    "launch_prepare",
    "store_source",
]

_ALIGNMENT = 4  # float32 elements


class DkdvLaunch(Protocol):
    """A function that writes dk and dv, or sums of them, under some heads of each group."""

    def __call__(
        self,
        heads: range,
        results: tuple[Tensor, ...],
        sums: list[Tensor] | None,
        heads_kv: slice | None = None,
        place: Any = None,
    ) -> None:
        """Launches the kernel.

        Args:
            heads: The heads, counted from the first of their group.
            results: The tensors for dk and dv.
            sums: The sums of earlier launches, which are added: float32 [Tk, Hkv, D] each. None stands for zeros.
            heads_kv: The KV heads, which are launched together. None stands for all.
            place: The place for gradients of scores, from `store_source`. Needed if the plan stores them.
        """


def launch_attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: BSAPlan) -> None:
    """Writes out and lse."""
    config, lists, tiles = plan.configs.forward, plan.lists("forward"), plan.tiles["forward"]
    inputs, tma = sources((k, v), (config.block_n, config.block_n), config.tma and not lists.piece)
    launch_kernel(
        attend,
        (tiles.programs,),
        q,
        *inputs,
        out,
        lse,
        *_tables(tiles, lists, config.block_n),
        *strides(q, k, v, out),
        *lse.stride(),
        *_counts(tiles, lists),
        plan.packed,
        plan.group,
        plan.heads_a_mask,
        plan.problem.scale,
        k.shape[0],
        **_constants(q, config, lists, config.block_n, tma),
    )


def launch_dkdv(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dk: Tensor, dv: Tensor, plan: BSAPlan
) -> None:
    """Writes dk and dv.

    Programs of a KV head share the queries of its group while these lie in the L2 cache. If a group has too many
    queries for the cache, each launch takes some of its heads, and adds to float32 sums.
    """
    at_a_time = heads_a_launch(q, plan.group)
    sums = (
        [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (dk, dv)]
        if at_a_time < plan.group
        else None
    )
    launch = dkdv_launch(dout, q, k, v, prepared, plan)
    for first_head in range(0, plan.group, at_a_time):
        heads = range(first_head, first_head + at_a_time)
        launch(heads, (dk, dv) if sums is None or heads.stop == plan.group else tuple(sums), sums)


def dkdv_launch(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, plan: BSAPlan) -> DkdvLaunch:
    """A function that writes dk and dv under some heads. Its calls share descriptors, strides and constants."""
    config, lists, tiles, scores = plan.configs.dkdv, plan.lists("dkdv"), plan.tiles["dkdv"], plan.scores
    m, n = config.shape
    inputs, tma = sources((q, k, v, dout), (m, n, n, m), config.tma and not lists.piece)
    # A descriptor wants a block of a vector to begin at a multiple of 16 bytes. Runs of some units do not.
    vectors = tma and lists.unit % _ALIGNMENT == 0
    inputs += vector_sources(prepared, m, vectors)
    own_strides = *strides(q, k, v, dout), k.shape[1] * k.shape[2]
    about = plan.group, plan.heads_a_mask, plan.problem.scale, q.shape[0], k.shape[0], prepared.shape[2]
    constants = {
        "VECTORS": vectors,
        "STORED": scores is not None,
        "WHOLE": scores is not None and scores.is_whole,
        **_constants(q, config, lists, m, tma),
    }

    def launch(
        heads: range,
        results: tuple[Tensor, ...],
        sums: list[Tensor] | None,
        heads_kv: slice | None = None,
        place: Any = None,
    ) -> None:
        some = tiles.of_heads(heads_kv) if heads_kv else tiles
        passes, repeats = (1, len(heads)) if plan.passes == 1 else (len(heads), 1)
        launch_kernel(
            gather_dkdv,
            (some.programs,),
            *inputs,
            *(sums or results),
            *results,
            place,
            scores.first_rows if scores else None,
            *_tables(some, lists, m),
            *own_strides,
            *strides(*results),
            *_counts(some, lists),
            heads.start,
            passes,
            repeats,
            *about,
            ADDS=sums is not None,
            **constants,
        )

    return launch


def store_source(stored: Tensor, plan: BSAPlan) -> TensorDescriptor:
    """A descriptor of the place for gradients of scores: [rows, heads · block_n]."""
    return TensorDescriptor(stored, list(stored.shape), list(stored.stride()), list(plan.configs.dkdv.shape))


def heads_a_launch(q: Tensor, group: int) -> int:
    """Query heads of a group that one launch of dk and dv takes on the device of q."""
    if not q.is_cuda:
        return group
    cache = torch.cuda.get_device_properties(q.device).L2_cache_size
    return heads_in_cache(cache, group, q.shape[0] * q.shape[2] * q.itemsize)


def launch_dq(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dq: Tensor, plan: BSAPlan) -> None:
    """Writes dq."""
    config, lists, tiles = plan.configs.dq, plan.lists("dq"), plan.tiles["dq"]
    inputs, tma = sources((k, v), (config.block_n, config.block_n), config.tma and not lists.piece)
    launch_kernel(
        gather_dq,
        (tiles.programs,),
        q,
        *inputs,
        dout,
        *prepared,
        dq,
        *_tables(tiles, lists, config.block_n),
        *strides(q, k, v, dout, dq),
        *_counts(tiles, lists),
        plan.packed,
        plan.group,
        plan.heads_a_mask,
        plan.problem.scale,
        k.shape[0],
        prepared.shape[2],
        **_constants(q, config, lists, config.block_n, tma),
    )


def _tables(tiles: Tiles, lists: Lists, step: int) -> tuple[Tensor, ...]:
    return tiles.order, tiles.table, lists.entries, lists.offsets, lists.steps[step]


def _counts(tiles: Tiles, lists: Lists) -> tuple[int, int, int]:
    return len(tiles.table), lists.num_rows, lists.unit


def _constants(q: Tensor, config: Config, lists: Lists, step: int, tma: bool) -> dict[str, Any]:
    return {"PIECE": lists.piece, "EXACT": lists.is_exact(step), **config.constants(q.shape[2], tma)}
