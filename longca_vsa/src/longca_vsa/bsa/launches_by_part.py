"""The launches of a backward that stores gradients of scores, part by part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from longca.manifests.packages import missing
from longca_triton.descriptors import is_describable, sources, strides
from longca_triton.prepare import launch_prepare
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.launches import DkdvLaunch, dkdv_launch
from longca_vsa.bsa.plan import BSAPlan
from longca_vsa.bsa.score_tiles import multiply_dscores
from longca_vsa.bsa_gluon import BSA_GLUON

__all__ = ["launch_parts"]

_Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
#: Writes dq under a part's heads, from the first one on, and some KV heads.
_DqLaunch = Callable[[int, slice], None]


def launch_parts(inputs: _Six, results: tuple[Tensor, ...], plan: BSAPlan) -> None:
    """Writes dq, dk and dv.

    The parts of some KV heads follow each other on one stream. On several streams, parts of other KV heads fill
    multiprocessors that a part leaves idle.

    Args:
        inputs: dout, q, k, v, out and lse.
        results: dq, dk and dv.
        plan: The plan, with ranges.
    """
    dout, q, k, v, out, lse = inputs
    dq, *grads = results
    config, cut = plan.configs.dq, plan.cut
    assert isinstance(config, FromScores)
    assert cut is not None
    has_sums, rows = cut.has_sums(plan.group), max(each.plan.score_rows for each in plan.ranges)
    prepared = [launch_prepare(dout[own], out[own], lse[:, own], each) for own, each in plan.ranges]
    sums = [torch.zeros(k.shape, dtype=torch.float32, device=k.device) for _ in "kv"] if has_sums else None
    side = [_side_stream(q.device, number) for number in range(1, config.streams)] if q.is_cuda else []
    lanes, make_launch = [], _dkdv_launch_of(config, dout, q, k, v)
    for stream in (None, *side):
        store, launches = q.new_empty((rows, cut.heads * config.block_n)), []
        for (own, each), numbers in zip(plan.ranges, prepared, strict=True):
            launch = make_launch(dout[own], q[own], k, v, numbers, each, store[: each.score_rows])
            launches.append((launch, _dq_launch(store, k, dq[own], each)))
        lanes.append((stream, launches))
    for stream in side:
        stream.wait_stream(torch.cuda.current_stream(q.device))
    for number, first in enumerate(range(0, k.shape[1], cut.heads_kv)):
        lane, launches = lanes[number % len(lanes)]
        with torch.cuda.stream(lane):
            _launch_heads(slice(first, first + cut.heads_kv), launches, tuple(grads), sums, cut.heads, plan.group)
    for stream in side:
        torch.cuda.current_stream(q.device).wait_stream(stream)


def _dkdv_launch_of(config: FromScores, *inputs: Tensor) -> Callable[..., DkdvLaunch]:
    """What makes the launches of dk and dv: the kernel for Hopper where it can, else that in Triton.

    Both write the same gradients of scores to the same places.
    """
    if not (config.hopper and missing(*BSA_GLUON.requires) is None and all(is_describable(x) for x in inputs)):
        return dkdv_launch
    from longca_vsa.bsa.hopper import launch  # needs Gluon

    return launch.dkdv_launch


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """One stream for each number, so that memory that it has freed is used again."""
    return torch.cuda.Stream(device)


def _launch_heads(
    heads_kv: slice,
    launches: list[tuple[DkdvLaunch, _DqLaunch]],
    grads: tuple[Tensor, ...],
    sums: list[Tensor] | None,
    at_a_time: int,
    group: int,
) -> None:
    """The parts of some KV heads. dk and dv go to the sums until the last part."""
    for number, (launch_dkdv, launch_dq) in enumerate(launches, 1):
        for first in range(0, group, at_a_time):
            heads = range(first, first + at_a_time)
            is_last = heads.stop == group and number == len(launches)
            launch_dkdv(heads, grads if sums is None or is_last else tuple(sums), sums, heads_kv)
            launch_dq(first, heads_kv)


def _dq_launch(stored: Tensor, k: Tensor, dq: Tensor, plan: BSAPlan) -> _DqLaunch:
    """A function that writes dq, the product of stored gradients and keys, under some heads."""
    config, tiles, scores = plan.configs.dq, plan.tiles["dq"], plan.scores
    assert scores is not None
    (keys,), tma = sources((k,), (config.block_n,), config.tma)
    (dscores,), _ = sources((stored.view(-1, 1, config.block_n),), (config.block_m,), True)
    tables = scores.entries, scores.offsets, scores.head_rows
    own_strides, counts = tuple(strides(k, dq)), (len(tiles.table), scores.steps.shape[1])
    about = plan.group, plan.heads_a_mask, plan.problem.scale, k.shape[0]
    constants = {"PACKED": plan.packed, **config.constants(k.shape[2], tma)}

    def launch(first_head: int, heads_kv: slice) -> None:
        some = tiles.of_heads(heads_kv)
        multiply_dscores[(some.programs,)](
            dscores, keys, dq, some.order, some.table, *tables, *own_strides, *counts, first_head, *about, **constants
        )

    return launch
