"""The launches of a backward that stores gradients of scores, part by part."""

from __future__ import annotations

import torch
from torch import Tensor

from longca_triton.descriptors import sources, strides
from longca_triton.prepare import launch_prepare
from longca_vsa.bsa.launches import launch_heads
from longca_vsa.bsa.plan import BSAPlan, Part
from longca_vsa.bsa.score_tiles import multiply_dscores

__all__ = ["launch_parts"]


def launch_parts(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], results: tuple[Tensor, ...], plan: BSAPlan
) -> None:
    """Writes dq, dk and dv.

    The queries of some heads may take several parts. Their launches add to float32 sums of dk and dv.

    Args:
        inputs: dout, q, k, v, out and lse.
        results: dq, dk and dv.
        plan: The plan, with parts.
    """
    q, block_n = inputs[1], plan.configs.dkdv.block_n
    store = q.new_empty(max(part.plan.score_rows for part in plan.parts) * plan.packed * block_n)
    sums: list[Tensor] | None = None
    for part in plan.parts:
        is_first, is_last = part.queries.start == 0, part.queries.stop == q.shape[0]
        if is_first:
            shape = (results[1].shape[0], part.heads.stop - part.heads.start, q.shape[2])
            sums = None if is_last else [q.new_zeros(shape, dtype=torch.float32) for _ in "kv"]
        _launch_part(part, inputs, results, store, sums, is_last)


def _launch_part(
    part: Part,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    results: tuple[Tensor, ...],
    store: Tensor,
    sums: list[Tensor] | None,
    is_last: bool,
) -> None:
    """One part. Its dk and dv go to the sums unless it is the last part of its heads."""
    plan, group = part.plan, part.plan.group
    heads_q = slice(part.heads.start * group, part.heads.stop * group)
    dout, q, k, v, out, lse = inputs
    dout, q, out, dq = (x[part.queries, heads_q] for x in (dout, q, out, results[0]))
    k, v, dk, dv = (x[:, part.heads] for x in (k, v, *results[1:]))
    prepared = launch_prepare(dout, out, lse[heads_q, part.queries], plan)
    block_n = plan.configs.dkdv.block_n
    stored = store[: plan.score_rows * plan.packed * block_n].view(plan.score_rows, plan.packed * block_n)
    written = (dk, dv) if sums is None or is_last else tuple(sums)
    launch_heads(dout, q, k, v, prepared, written, plan, range(group), sums, stored)
    _launch_dq(stored.view(-1, block_n), k, dq, plan)


def _launch_dq(stored: Tensor, k: Tensor, dq: Tensor, plan: BSAPlan) -> None:
    """Writes dq, the product of stored gradients and keys."""
    config, tiles, scores = plan.configs.dq, plan.tiles["dq"], plan.scores
    assert scores is not None
    (keys,), tma = sources((k,), (config.block_n,), config.tma)
    (dscores,), _ = sources((stored[:, None],), (config.block_m,), True)
    multiply_dscores[(tiles.programs,)](
        dscores,
        keys,
        dq,
        tiles.order,
        tiles.table,
        scores.entries,
        scores.offsets,
        scores.group_rows,
        *strides(k, dq),
        len(tiles.table),
        scores.steps.shape[1],
        plan.group,
        plan.heads_a_mask,
        plan.problem.scale,
        k.shape[0],
        PACKED=plan.packed,
        **config.constants(k.shape[2], tma),
    )
