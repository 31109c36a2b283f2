"""The launches of a backward that stores gradients of scores, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from longca.manifests.packages import missing
from longca_triton.descriptors import is_describable, sources, strides
from longca_triton.launching import launch_kernel
from longca_triton.prepare import launch_prepare
from longca_vsa.bsa import launches
from longca_vsa.bsa.configs import FromScores
from longca_vsa.bsa.launches import DkdvLaunch
from longca_vsa.bsa.plan import BSAPlan
from longca_vsa.bsa.score_tiles import multiply_dscores
from longca_vsa.bsa_gluon import BSA_GLUON

__all__ = ["launch_parts"]

_Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
#: Writes dq from stored gradients, under a part's heads, from the first one on, and some KV heads.
_DqLaunch = Callable[[Any, int, slice], None]


class _Dkdv(Protocol):
    """The launches of a kernel of dk and dv."""

    def dkdv_launch(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, plan: BSAPlan) -> DkdvLaunch:
        """A function that writes dk and dv under some heads."""

    def store_source(self, stored: Tensor, plan: BSAPlan) -> Any:
        """The place for gradients of scores, as the kernel takes it."""


@dataclass(frozen=True, eq=False)
class _Range:
    """A range of queries. Its launches are made when they are first needed: earlier ones keep the device busy then.

    Attributes:
        inputs: dout, q, k and v.
        prepared: The queries' exponents and deltas.
        dq: The result for these queries.
        plan: The plan.
        dkdv: The kernel of dk and dv.
    """

    inputs: tuple[Tensor, Tensor, Tensor, Tensor]
    prepared: Tensor
    dq: Tensor
    plan: BSAPlan
    dkdv: _Dkdv

    @cached_property
    def launch_dkdv(self) -> DkdvLaunch:
        """Writes dk and dv, and gradients of scores."""
        return self.dkdv.dkdv_launch(*self.inputs, self.prepared, self.plan)

    @cached_property
    def launch_dq(self) -> _DqLaunch:
        """Writes dq."""
        _, _, k, _ = self.inputs
        return _dq_launch(k, self.dq, self.plan)

    def places(self, store: Tensor) -> tuple[Any, Any]:
        """A store of gradients of scores, as the kernels of dk and dv and of dq take it."""
        stored, (block_m, block_n) = store[: self.plan.score_rows], self.plan.configs.dq.shape
        (dscores,), _ = sources((stored.view(-1, 1, block_n),), (block_m,), True)
        return self.dkdv.store_source(stored, self.plan), dscores


@dataclass(frozen=True, eq=False)
class _Lane:
    """Parts that follow each other.

    Attributes:
        stream: Their stream. None stands for the current one.
        ranges: The ranges of queries.
        store: Memory for the gradients of scores of one part: [rows, heads · block_n].
    """

    stream: torch.cuda.Stream | None
    ranges: list[_Range]
    store: Tensor

    @cached_property
    def parts(self) -> list[tuple[_Range, Any, Any]]:
        """Each range, and the store as its kernels take it."""
        return [(each, *each.places(self.store)) for each in self.ranges]


def launch_parts(inputs: _Six, results: tuple[Tensor, ...], plan: BSAPlan) -> None:
    """Writes dq, dk and dv.

    The parts of some KV heads follow each other on one stream. On several streams, parts of other KV heads fill
    multiprocessors that a part leaves idle.
    """
    dout, q, k, v, out, lse = inputs
    dq, *grads = results
    config, cut = plan.configs.dq, plan.cut
    assert isinstance(config, FromScores)
    assert cut is not None
    prepared = [launch_prepare(dout[own], out[own], lse[:, own], each) for own, each in plan.ranges]
    has_sums, rows = cut.has_sums(plan.group), max(each.plan.score_rows for each in plan.ranges)
    sums = [torch.zeros(k.shape, dtype=torch.float32, device=k.device) for _ in "kv"] if has_sums else None
    side = [_side_stream(q.device, number) for number in range(1, config.streams)] if q.is_cuda else []
    stores = [q.new_empty((rows, cut.heads * config.block_n)) for _ in range(1 + len(side))]
    for stream in side:
        stream.wait_stream(torch.cuda.current_stream(q.device))
    dkdv = _dkdv_of(config, dout, q, k, v)
    ranges = [
        _Range((dout[own], q[own], k, v), numbers, dq[own], each, dkdv)
        for (own, each), numbers in zip(plan.ranges, prepared, strict=True)
    ]
    lanes = [_Lane(stream, ranges, store) for stream, store in zip((None, *side), stores, strict=True)]
    for number, first in enumerate(range(0, k.shape[1], cut.heads_kv)):
        lane = lanes[number % len(lanes)]
        with torch.cuda.stream(lane.stream):
            _launch_heads(slice(first, first + cut.heads_kv), lane, tuple(grads), sums, cut.heads, plan.group)
    for stream in side:
        torch.cuda.current_stream(q.device).wait_stream(stream)


def _dkdv_of(config: FromScores, *inputs: Tensor) -> _Dkdv:
    """The launches of dk and dv: of the kernel for Hopper where it can, else of that in Triton.

    Both write the same gradients of scores to the same places.
    """
    if not (config.hopper and missing(*BSA_GLUON.requires) is None and all(is_describable(x) for x in inputs)):
        return launches
    from longca_vsa.bsa.hopper import launch  # needs Gluon

    return launch


@cache
def _side_stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """One stream for each number, so that memory that it has freed is used again."""
    return torch.cuda.Stream(device)


def _launch_heads(
    heads_kv: slice,
    lane: _Lane,
    grads: tuple[Tensor, ...],
    sums: list[Tensor] | None,
    at_a_time: int,
    group: int,
) -> None:
    """The parts of some KV heads. dk and dv go to the sums until the last part."""
    for number, (each, place, dscores) in enumerate(lane.parts, 1):
        for first in range(0, group, at_a_time):
            heads = range(first, first + at_a_time)
            is_last = heads.stop == group and number == len(lane.parts)
            each.launch_dkdv(heads, grads if sums is None or is_last else tuple(sums), sums, heads_kv, place)
            each.launch_dq(dscores, first, heads_kv)


def _dq_launch(k: Tensor, dq: Tensor, plan: BSAPlan) -> _DqLaunch:
    """A function that writes dq, the product of stored gradients and keys, under some heads."""
    config, tiles, scores = plan.configs.dq, plan.tiles["dq"], plan.scores
    assert scores is not None
    (keys,), tma = sources((k,), (config.block_n,), config.tma)
    tables = scores.entries, scores.offsets, scores.head_rows
    own_strides, counts = tuple(strides(k, dq)), (len(tiles.table), scores.steps.shape[1])
    about = plan.group, plan.heads_a_mask, plan.problem.scale, k.shape[0]
    constants = {"PACKED": plan.packed, **config.constants(k.shape[2], tma)}

    def launch(dscores: Any, first_head: int, heads_kv: slice) -> None:
        some = tiles.of_heads(heads_kv)
        numbers = *own_strides, *counts, first_head, *about
        launch_kernel(
            multiply_dscores,
            (some.programs,),
            dscores,
            keys,
            dq,
            some.order,
            some.table,
            *tables,
            *numbers,
            **constants,
        )

    return launch
