"""Rehearsals: a strategy run for one rank after another in a world that moves nothing, and what it did in which order.

The attention calls, the collectives and the waits for them are those of the strategy itself, so what is drawn of them
cannot differ from it. Nothing is computed: the kernel only counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from longca import registry
from longca.manifests import Device, Layout, Problem
from longca.masks import Mask
from longca_cp.exchange import Transfer

#: Of torch.distributed's operators, the word for what they do.
_KINDS = {
    "send": "p2p",
    "alltoall_base_": "all_to_all",
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
}


@dataclass(frozen=True)
class Move:
    """One collective of one rank.

    Attributes:
        kind: `p2p`, `all_to_all`, `all_gather` or `reduce_scatter`.
        axis: The mesh axis along which it moves.
        sent: Bytes that leave the rank.
        to: The ranks that get them, as the layout numbers ranks.
    """

    kind: str
    axis: str
    sent: int
    to: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """Something that a rank does.

    Attributes:
        what: `begin` or `wait` of a move, or `call`: an attention call.
        index: Which move or call, counted from 0.
    """

    what: str
    index: int


@dataclass
class Part:
    """What one rank did.

    Attributes:
        events: In their order.
        moves: Its collectives.
        calls: The shapes of q and k of each attention call.
    """

    events: list[Event] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    calls: list[tuple[torch.Size, torch.Size]] = field(default_factory=list)


@dataclass(frozen=True)
class Rehearsal:
    """What all ranks did in one forward.

    Attributes:
        problem: What was asked.
        axis_sizes: The mesh.
        layout: Who holds what and computes what.
        parts: What each rank did: [ranks].
    """

    problem: Problem
    axis_sizes: Mapping[str, int]
    layout: Layout
    parts: tuple[Part, ...]


class _Counter:
    """A kernel that computes nothing."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def plan(self, problem: Problem) -> SimpleNamespace:
        return SimpleNamespace(problem=problem, metadata_bytes=0)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Any, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self._part.events.append(Event("call", len(self._part.calls)))
        self._part.calls.append((q.shape, k.shape))
        return torch.zeros_like(q) if out is None else out, q.new_zeros(q.shape[1::-1]) if lse is None else lse


class _Watch(TorchDispatchMode):
    """Notes collectives as they begin."""

    def __init__(self, part: Part, mesh: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._part, self._mesh = part, mesh
        self.open: dict[int, int] = {}  # moves that nobody waited for yet, by the memory that they read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" and name in _KINDS:
            group = next(dist.ProcessGroup.unbox(x) for x in args[1:] if isinstance(x, torch.ScriptObject))
            given = args[0][0] if name == "send" else args[1]
            members = dist.get_process_group_ranks(group)
            others = [rank for rank in members if rank != dist.get_rank()]
            to = [members[args[2]]] if name == "send" else others
            sent = given.nbytes * _share(name, len(members))
            self.open[given.data_ptr()] = len(self._part.moves)
            self._part.events.append(Event("begin", len(self._part.moves)))
            self._part.moves.append(Move(_KINDS[name], self._axis(group), round(sent), tuple(to)))
        return func(*args, **(kwargs or {}))

    def waited(self, transfer: Transfer) -> None:
        """Notes that a transfer is waited for."""
        for tensor in transfer.tensors:
            if (move := self.open.pop(tensor.data_ptr(), None)) is not None:
                self._part.events.append(Event("wait", move))

    def _axis(self, group: dist.ProcessGroup) -> str:
        names: list[str] = [
            n for n in self._mesh.mesh_dim_names if self._mesh.get_group(n).group_name == group.group_name
        ]
        return names[0]


def _share(name: str, members: int) -> float:
    """The share of a collective's tensor that leaves; of an all-gather it leaves once for every other rank."""
    return {"send": 1.0, "_allgather_base_": members - 1}.get(name, (members - 1) / members)


@contextmanager
def _world(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def rehearse(
    strategy: str, mask: Mask, axis_sizes: Mapping[str, int], placement: str, heads: tuple[int, int]
) -> Rehearsal:
    """One forward of a strategy, rank after rank.

    Args:
        strategy: Its name.
        mask: The mask of all tokens.
        axis_sizes: Ranks along each of its axes, in the manifest's order.
        placement: How tokens are placed.
        heads: Query heads and KV heads.
    """
    problem = Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], head_dim=8, dtype="float32", device=Device("cpu"))
    layout = registry().layout(strategy, problem, axis_sizes, placement)
    parts = tuple(_part(strategy, problem, layout, axis_sizes, rank) for rank in range(layout.world_size))
    return Rehearsal(problem, axis_sizes, layout, parts)


def _part(strategy: str, problem: Problem, layout: Layout, axis_sizes: Mapping[str, int], rank: int) -> Part:
    part, tokens, dim = Part(), layout.shard_size(rank), problem.head_dim
    q, k, v = (torch.zeros((tokens, h, dim)) for h in (problem.heads_q, problem.num_heads_kv, problem.num_heads_kv))
    with _world(rank, layout.world_size):
        mesh = init_device_mesh("cpu", tuple(axis_sizes.values()), mesh_dim_names=tuple(axis_sizes))
        subject = registry().load_strategy(strategy)(mesh)
        plan = subject.plan(problem, layout, _Counter(part))
        wait, watch = Transfer.wait, _Watch(part, mesh)

        def waiting(transfer: Transfer) -> None:
            watch.waited(transfer)
            wait(transfer)

        with mock.patch.object(Transfer, "wait", waiting), watch:
            subject.forward(q, k, v, plan)
    return part
