"""Schedules have the bytes that strategies send, compared with their collectives in a world that moves nothing."""

import json
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from longca import masks, registry
from longca.manifests import Device, Problem, Transport
from longca.plugins import load_object
from longca_bench.measuring.traffic import Recorder
from longca_cp.exchange import Axis
from longca_cp.overlap import is_beside

RECORDS = Path(__file__).parents[2] / "results" / "h200" / "distributed"
SEQLEN = 384
WORLDS = [
    ("ulysses", {"ulysses": 2}),
    ("ulysses", {"ulysses": 8}),
    ("ring_p2p", {"ring": 4}),
    ("ring_all_gather", {"ring": 3}),
    ("usp", {"ring": 2, "ulysses": 2}),
    ("loongtrain", {"outer": 2, "inner": 2, "heads": 1}),
    ("loongtrain", {"outer": 3, "inner": 1, "heads": 2}),
]
MASKS = [
    ("full", {}, "contiguous"),
    ("causal", {}, "zigzag"),
    ("causal_sliding_window", {"window": 64}, "zigzag"),
    ("uniform_block_sparse", {"block": 16, "kept": 1.0, "heads": 4}, "zigzag"),
]


class Idle:
    """A kernel that computes nothing."""

    def plan(self, problem):
        return SimpleNamespace(problem=problem, metadata_bytes=0)

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        lse = torch.zeros(q.shape[1::-1], dtype=torch.float32) if lse is None else lse
        return q.new_empty((*q.shape[:2], v.shape[2])) if out is None else out, lse

    def backward(self, dout, q, k, v, out, lse, plan, *, dq=None, dk=None, dv=None):
        return dq, dk, dv


@contextmanager
def world(rank, size, nccl):
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        with mock.patch.object(Axis, "by_nccl", property(lambda _: nccl)):
            yield
    finally:
        dist.destroy_process_group()


def schedule_of(strategy, problem, layout, nccl, transport=Transport.COLLECTIVES):
    manifest = registry().strategy(strategy)
    return load_object(manifest, manifest.schedule, "longca-cp")(problem, layout, nccl, transport)


def collectives(strategy, axis_sizes, problem, layout, rank, nccl):
    """The collectives of one rank's call."""
    with world(rank, layout.world_size, nccl):
        mesh = init_device_mesh("cpu", tuple(axis_sizes.values()), mesh_dim_names=tuple(axis_sizes))
        made = registry().load_strategy(strategy)(mesh)
        plan, tokens = made.plan(problem, layout, Idle()), layout.shard_size(rank)
        (dim, dim_v), dtype = problem.dims, getattr(torch, problem.dtype)
        heads_q, heads_kv = problem.heads_q, problem.num_heads_kv
        shapes = (heads_q, dim), (heads_kv, dim), (heads_kv, dim_v), (heads_q, dim_v)
        q, k, v, dout = (torch.zeros((tokens, *shape), dtype=dtype) for shape in shapes)
        kept = []
        with Recorder() as forward:
            out, lse = made.forward(q, k, v, plan, kept=kept)
        if problem.direction == "forward":
            return forward.collectives
        with Recorder() as backward:
            made.backward(dout, q, k, v, out, lse, plan, kept=kept)
        return backward.collectives


@pytest.mark.sampled(2)
@pytest.mark.parametrize("nccl", [False, True])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("pattern", "factors", "placement"), MASKS, ids=str)
@pytest.mark.parametrize(("strategy", "axis_sizes"), WORLDS, ids=str)
def test_moves_are_the_collectives_of_the_rank_that_has_most(
    strategy, axis_sizes, pattern, factors, placement, direction, nccl
):
    mask = masks.build(pattern, SEQLEN, **factors)
    fields = {"heads_q": 16, "heads_kv": 4, "head_dim": 16, "dtype": "bfloat16", "direction": direction}
    problem = Problem(mask=mask, device=Device("cpu"), head_dim_v=24 if pattern == "causal" else 16, **fields)
    placement = "contiguous" if strategy == "ulysses" else placement
    layout = registry().layout(strategy, problem, axis_sizes, placement)
    moves = [move for phase in schedule_of(strategy, problem, layout, nccl) for move in phase.moves]
    ranks = [collectives(strategy, axis_sizes, problem, layout, r, nccl) for r in range(layout.world_size)]
    for of_rank in ranks:
        assert Counter(move.kind for move in moves) == Counter(c.kind for c in of_rank)
    # Which of two collectives under way together began first is not said: sizes are compared in their order.
    for kind in {move.kind for move in moves}:
        sizes = [[c.size for c in of_rank if c.kind == kind] for of_rank in ranks]
        sent = [[c.sent for c in of_rank if c.kind == kind] for of_rank in ranks]
        mine = [move for move in moves if move.kind == kind]
        assert sorted(move.bytes for move in mine) == sorted(map(max, zip(*sizes, strict=True)))
        most = sorted(map(max, zip(*sent, strict=True)))
        assert all(said >= seen for said, seen in zip(sorted(move.sent for move in mine), most, strict=True))


@pytest.mark.parametrize("placement", ["contiguous", "zigzag"])
@pytest.mark.parametrize(
    ("pattern", "factors"),
    [
        ("full", {}),
        ("causal", {}),
        ("full_document", {"documents": (96, 288)}),
        ("causal_sliding_window", {"window": 64}),
    ],
)
def test_a_hop_is_beside_all_steps_but_the_forward_of_full_cuts(pattern, factors, placement):
    mask = masks.build(pattern, SEQLEN, **factors)
    problem = Problem(mask=mask, heads_q=4, head_dim=16, device=Device("cpu"))
    layout = registry().layout("ring_p2p", problem, {"ring": 4}, placement)
    phases = schedule_of("ring_p2p", problem, layout, True)
    for rank, steps in enumerate(layout.steps):
        for phase, step in zip(phases, steps, strict=True):
            cut = problem.narrowed(range(4), range(4), (step.q_ranges, step.k_ranges))
            of_rank = phase.beside if isinstance(phase.beside, bool) else phase.beside[rank]
            assert of_rank == is_beside(cut, nccl=True)
    assert all(phase.beside is True for phase in schedule_of("ring_p2p", problem, layout, False))


def records():
    """The measured calls of this code, with their traffic."""
    for run in ("two", "four", "two-placed"):
        for line in (RECORDS / run / "records.jsonl").read_text().splitlines():
            record = json.loads(line)
            if record["status"] == "ok" and record["pattern"] in ("full", "causal"):
                yield record


@pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are not in a wheel")
def test_moves_are_those_of_records():
    for record in records():
        mask = masks.build(record["pattern"], record["seqlen"])
        fields = {key: record[key] for key in ("heads_q", "heads_kv", "head_dim", "dtype", "direction")}
        problem = Problem(mask=mask, device=Device("cuda", (9, 0)), **fields)
        sizes = {axis: int(n) for axis, n in (part.split("=") for part in record["mesh"].split(","))}
        layout = registry().layout(record["strategy"], problem, sizes, record["placed"])
        calls, size = Counter(), Counter()
        for phase in schedule_of(record["strategy"], problem, layout, True):
            for move in phase.moves:
                calls[move.kind] += 1
                size[move.kind] += move.bytes
        measured = {kind: found for kind, found in record["communication"].items() if kind != "all"}
        assert calls == {kind: found["calls"] for kind, found in measured.items()}
        for kind, found in measured.items():
            assert found["bytes"] <= size[kind] <= 1.02 * found["bytes"]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("strategy", "axis_sizes", "nccl", "pushes"),
    [
        ("ulysses", {"ulysses": 2}, True, {"ulysses"}),
        ("ring_p2p", {"ring": 2}, True, {"ring"}),
        ("ring_all_gather", {"ring": 2}, True, {"ring"}),
        ("usp", {"ring": 1, "ulysses": 2}, True, {"ulysses"}),
        ("loongtrain", {"outer": 1, "inner": 2, "heads": 1}, True, {"inner"}),
        ("ring_p2p", {"ring": 2}, False, set()),
        ("ring_p2p", {"ring": 4}, True, {"ring"}),
        ("ring_p2p", {"ring": 5}, True, set()),
        ("usp", {"ring": 5, "ulysses": 2}, True, {"ulysses"}),
        ("loongtrain", {"outer": 2, "inner": 5, "heads": 2}, True, {"outer", "heads"}),
    ],
)
def test_auto_pushes_along_axes_of_up_to_four_gpus(strategy, axis_sizes, nccl, pushes, direction):
    mask = masks.build("causal", seqlen=SEQLEN)
    problem = Problem(mask=mask, heads_q=8, heads_kv=4, device=Device("cuda", (9, 0)), direction=direction)
    layout = registry().layout(strategy, problem, axis_sizes, "contiguous")
    auto = schedule_of(strategy, problem, layout, nccl, Transport.AUTO)
    moves = [move for phase in auto for move in phase.moves]
    assert {move.axis for move in moves} >= pushes
    assert all((move.kind == "push") == (move.axis in pushes) for move in moves)
    if pushes in (set(), {axis for axis, size in axis_sizes.items() if size > 1}):
        transport = Transport.COPY_ENGINE if pushes else Transport.COLLECTIVES
        assert auto == schedule_of(strategy, problem, layout, nccl, transport)
