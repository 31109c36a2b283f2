"""The launches of a backward that stores gradients of scores, part by part."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from longca_triton.descriptors import sources, strides
from longca_triton.prepare import launch_prepare
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.launches import launch_heads
from longca_vsa.bsa.plan import BSAPlan
from longca_vsa.bsa.score_tiles import multiply_dscores

__all__ = ["launch_parts"]

_Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def launch_parts(inputs: _Six, results: tuple[Tensor, ...], plan: BSAPlan) -> None:
    """Writes dq, dk and dv.

    The parts of some KV heads follow each other on one stream. On several streams, parts of other KV heads fill
    multiprocessors that a part leaves idle.

    Args:
        inputs: dout, q, k, v, out and lse.
        results: dq, dk and dv.
        plan: The plan, with ranges.
    """
    q, k, config, cut = inputs[1], inputs[2], plan.configs.dq, plan.cut
    assert isinstance(config, FromScores)
    assert cut is not None
    rows = max(each.plan.score_rows for each in plan.ranges)
    streams = [_side_stream(q.device, n) for n in range(1, config.streams)] if q.is_cuda else []
    lanes = [(stream, q.new_empty((rows, cut.heads * config.block_n))) for stream in (None, *streams)]
    prepared = [_prepared(inputs, each.queries, each.plan) for each in plan.ranges]
    adds = cut.has_sums(plan.group)
    sums = [torch.zeros(k.shape, dtype=torch.float32, device=k.device) for _ in "kv"] if adds else None
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(q.device))
    for number, first in enumerate(range(0, k.shape[1], cut.heads_kv)):
        lane, store = lanes[number % len(lanes)]
        with torch.cuda.stream(lane):
            _launch_heads(slice(first, first + cut.heads_kv), inputs, prepared, results, sums, store, plan)
    for stream in streams:
        torch.cuda.current_stream(q.device).wait_stream(stream)


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """One stream for each number, so that memory that it has freed is used again."""
    return torch.cuda.Stream(device)


def _prepared(inputs: _Six, queries: slice, plan: BSAPlan) -> Tensor:
    dout, _, _, _, out, lse = inputs
    return launch_prepare(dout[queries], out[queries], lse[:, queries], plan)


def _launch_heads(
    heads_kv: slice,
    inputs: _Six,
    prepared: list[Tensor],
    results: tuple[Tensor, ...],
    sums: list[Tensor] | None,
    store: Tensor,
    plan: BSAPlan,
) -> None:
    """The parts of some KV heads. dk and dv go to the sums until the last part."""
    dout, q, k, v, _, _ = inputs
    dq, *grads = results
    for (queries, its_plan), its_prepared in zip(plan.ranges, prepared, strict=True):
        for first in range(0, plan.group, its_plan.packed):
            heads = range(first, first + its_plan.packed)
            is_last = heads.stop == plan.group and its_plan is plan.ranges[-1].plan
            written = tuple(grads if sums is None or is_last else sums)
            some = (dout[queries], q[queries], k, v, its_prepared, written, its_plan)
            launch_heads(*some, heads, sums, store[: its_plan.score_rows], heads_kv)
            _launch_dq(store, k, dq[queries], its_plan, first, heads_kv)


def _launch_dq(stored: Tensor, k: Tensor, dq: Tensor, plan: BSAPlan, first_head: int, heads_kv: slice) -> None:
    """Writes dq, the product of stored gradients and keys."""
    config, tiles, scores = plan.configs.dq, plan.tiles["dq"].of_heads(heads_kv), plan.scores
    assert scores is not None
    (keys,), tma = sources((k,), (config.block_n,), config.tma)
    (dscores,), _ = sources((stored.view(-1, 1, config.block_n),), (config.block_m,), True)
    multiply_dscores[(tiles.programs,)](
        dscores,
        keys,
        dq,
        tiles.order,
        tiles.table,
        scores.entries,
        scores.offsets,
        scores.head_rows,
        *strides(k, dq),
        len(tiles.table),
        scores.steps.shape[1],
        first_head,
        plan.group,
        plan.heads_a_mask,
        plan.problem.scale,
        k.shape[0],
        PACKED=plan.packed,
        **config.constants(k.shape[2], tma),
    )
