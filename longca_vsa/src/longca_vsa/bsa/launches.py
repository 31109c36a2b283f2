"""The four launches: one kernel each, over a plan's programs.

Shapes: q, out and dout [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq]. Inputs and results have a contiguous last
dimension, and any strides over tokens and heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca_vsa.bsa.configs import Config
from longca_vsa.bsa.dkdv import gather_dkdv
from longca_vsa.bsa.dq import gather_dq
from longca_vsa.bsa.forward import attend
from longca_vsa.bsa.lists import Lists
from longca_vsa.bsa.plan import BSAPlan
from longca_vsa.bsa.prepare import prepare
from longca_vsa.bsa.sources import describable, described, described_vectors, strides
from longca_vsa.bsa.tables import Tiles

__all__ = ["heads_a_launch", "launch_attend", "launch_dkdv", "launch_dq", "launch_prepare"]

_PREPARED_ELEMENTS = 8192  # of out and dout a program of `prepare`
_ALIGNMENT = 4  # float32 elements


def launch_attend(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: BSAPlan) -> None:
    """Writes out and lse."""
    config, lists, tiles = plan.configs.forward, plan.lists("forward"), plan.tiles["forward"]
    tma = config.tma and not lists.piece and describable(k, v)
    attend[(tiles.programs,)](
        q,
        *((described(x, config.block_n) for x in (k, v)) if tma else (k, v)),
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


def launch_prepare(dout: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """What dk, dv and dq need of out and lse: exponents and deltas, float32 [2, Hq, queries up to a whole block]."""
    num_queries, heads, head_dim = out.shape
    block = _PREPARED_ELEMENTS // head_dim
    padded = -(-num_queries // block) * block
    prepared = torch.empty((2, heads, padded), dtype=torch.float32, device=out.device)
    prepare[(padded // block, heads)](
        out,
        dout,
        lse,
        *prepared,
        *strides(out, dout),
        *lse.stride(),
        num_queries,
        padded,
        HEAD_DIM=head_dim,
        BLOCK=block,
        enable_fp_fusion=True,
    )
    return prepared


def launch_dkdv(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dk: Tensor, dv: Tensor, plan: BSAPlan
) -> None:
    """Writes dk and dv.

    Programs of a KV head share the queries of its group only while these lie in the L2 cache. Where the group's are too
    many for it, each launch takes some of its heads, and adds what it finds to float32 sums.
    """
    config, lists, tiles = plan.configs.dkdv, plan.lists("dkdv"), plan.tiles["dkdv"]
    m, n = config.block_m, config.block_n
    at_a_time = heads_a_launch(q, plan.group)
    sums = (
        [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (dk, dv)]
        if at_a_time < plan.group
        else None
    )
    tma = config.tma and not lists.piece and describable(q, k, v, dout)
    inputs: list[Any] = [q, k, v, dout, *prepared]
    if tma:
        inputs[:4] = [described(x, block) for x, block in zip((q, k, v, dout), (m, n, n, m), strict=True)]
    # A block of a vector begins at an address of 16 bytes, which runs of other units do not keep to.
    vectors = tma and lists.unit % _ALIGNMENT == 0
    if vectors:
        inputs[4:] = described_vectors(list(prepared), m)
    passes, repeats = (1, at_a_time) if plan.passes == 1 else (at_a_time, 1)
    for first_head in range(0, plan.group, at_a_time):
        is_last = first_head + at_a_time == plan.group
        results = (dk, dv) if sums is None or is_last else sums
        gather_dkdv[(tiles.programs,)](
            *inputs,
            *(sums or results),
            *results,
            *_tables(tiles, lists, m),
            *strides(q, k, v, dout),
            k.shape[1] * k.shape[2],
            *strides(*results),
            *_counts(tiles, lists),
            first_head,
            passes,
            repeats,
            plan.group,
            plan.heads_a_mask,
            plan.problem.scale,
            q.shape[0],
            k.shape[0],
            prepared.shape[2],
            VECTORS=vectors,
            ADDS=sums is not None,
            **_constants(q, config, lists, m, tma),
        )


def heads_a_launch(q: Tensor, group: int) -> int:
    """Query heads of a group whose queries, and gradients of outputs, take at most half the L2 cache; at least one."""
    if not q.is_cuda:
        return group
    cache = torch.cuda.get_device_properties(q.device).L2_cache_size
    fits = cache // (4 * max(1, q.shape[0]) * q.shape[2] * q.itemsize)
    return max(heads for heads in range(1, group + 1) if group % heads == 0 and heads <= max(1, fits))


def launch_dq(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dq: Tensor, plan: BSAPlan) -> None:
    """Writes dq."""
    config, lists, tiles = plan.configs.dq, plan.lists("dq"), plan.tiles["dq"]
    tma = config.tma and not lists.piece and describable(k, v)
    gather_dq[(tiles.programs,)](
        q,
        *((described(x, config.block_n) for x in (k, v)) if tma else (k, v)),
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
    """What the kernel is compiled for."""
    return {
        "HEAD_DIM": q.shape[2],
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "PIECE": lists.piece,
        "EXACT": lists.is_exact(step),
        "TMA": tma,
        **config.options,
    }
