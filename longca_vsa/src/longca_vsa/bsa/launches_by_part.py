"""The launches of a backward that stores gradients of scores, part by part."""

from __future__ import annotations

from functools import cache
from itertools import groupby

import torch
from torch import Tensor

from longca_triton.descriptors import sources, strides
from longca_triton.prepare import launch_prepare
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.launches import launch_heads
from longca_vsa.bsa.plan import BSAPlan, Part
from longca_vsa.bsa.score_tiles import multiply_dscores

__all__ = ["launch_parts"]


def launch_parts(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], results: tuple[Tensor, ...], plan: BSAPlan
) -> None:
    """Writes dq, dk and dv.

    The parts of some heads follow each other on one stream. On several streams, parts of other heads fill
    multiprocessors that a part leaves idle.

    Args:
        inputs: dout, q, k, v, out and lse.
        results: dq, dk and dv.
        plan: The plan, with parts.
    """
    q, config = inputs[1], plan.configs.dq
    assert isinstance(config, FromScores)
    elements = max(part.plan.score_rows for part in plan.parts) * plan.packed * config.block_n
    streams = [_side_stream(q.device, n) for n in range(1, config.streams)] if q.is_cuda else []
    lanes = [(stream, q.new_empty(elements)) for stream in (None, *streams)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(q.device))
    for number, (_, parts) in enumerate(groupby(plan.parts, key=lambda part: part.heads.start)):
        lane, store = lanes[number % len(lanes)]
        with torch.cuda.stream(lane):
            _launch_heads_parts(list(parts), inputs, results, store)
    for stream in streams:
        torch.cuda.current_stream(q.device).wait_stream(stream)


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """One stream for each number, so that memory that it has freed is used again."""
    return torch.cuda.Stream(device)


def _launch_heads_parts(
    parts: list[Part],
    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    results: tuple[Tensor, ...],
    store: Tensor,
) -> None:
    """The parts of some heads. Several parts add to float32 sums of dk and dv."""
    keys, _, head_dim = results[1].shape
    shape = keys, parts[0].heads.stop - parts[0].heads.start, head_dim
    sums = [store.new_zeros(shape, dtype=torch.float32) for _ in "kv"] if len(parts) > 1 else None
    for part in parts:
        _launch_part(part, inputs, results, store, sums, part is parts[-1])


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
