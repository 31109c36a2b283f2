"""Formulas for memory, compared with the allocations of strategies in a world that moves nothing."""

import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import prod
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longca import masks, registry
from longca.manifests import Device, Problem, Transport
from longca.parallel.merge import Accumulator, Sum
from longca.parallel.pushes import window_bytes
from longca_advice.evidence import shipped
from longca_advice.memory import KernelMemory, gradient_bytes, rank_bytes, tensor_bytes
from longca_cp import exchange, overlap
from longca_cp.memory import _PEAKS, Share, kept_bytes, peak_bytes
from longca_cp.transports.link import Link, Slots, Window

HEAD_DIM, SEQLEN = 128, 384
#: Log-sum-exps that there can be at a time, which the formulas leave out.
LSES = 5
#: How much less than the most a call may take.
CLOSE = 0.85
MESHES = [
    *(("ulysses", {"ulysses": n}) for n in (1, 4, 8)),
    *(("ring_p2p", {"ring": n}) for n in (1, 2, 4)),
    *(("ring_all_gather", {"ring": n}) for n in (2, 4)),
    *(("usp", {"ring": r, "ulysses": u}) for r, u in ((1, 2), (2, 2), (2, 4))),
    *(("loongtrain", {"outer": o, "inner": i, "heads": h}) for o, i, h in ((1, 2, 2), (2, 1, 2), (2, 2, 1), (3, 1, 2))),
]


class Peak(TorchDispatchMode):
    """The peak of the bytes of tensors, beyond the bytes at the start."""

    def __init__(self, *before):
        super().__init__()
        self._before = {tensor.untyped_storage()._cdata for tensor in before}
        self._live, self._now, self.most = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return results

    def _see(self, storage):
        place = storage._cdata
        if place not in self._before and place not in self._live:
            self._live[place] = storage.nbytes()
            self._now += storage.nbytes()
            self.most = max(self.most, self._now)
            weakref.finalize(storage, self._forget, place)

    def _forget(self, place):
        self._now -= self._live.pop(place)


class Idle:
    """A kernel that computes nothing, and takes nothing beside its results."""

    def plan(self, problem):
        return SimpleNamespace(problem=problem, metadata_bytes=0)

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        out = q.new_empty((*q.shape[:2], v.shape[2])) if out is None else out
        return out, q.new_empty(q.shape[1::-1]) if lse is None else lse

    def backward(self, dout, q, k, v, out, lse, plan, *, dq=None, dk=None, dv=None):
        return dq, dk, dv


@contextmanager
def world(size):
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def chunk_bytes(request, monkeypatch):
    """The least bytes of a chunk that is pushed."""
    monkeypatch.setattr(overlap, "CHUNK_BYTES", request.param)


def in_chunks(test):
    """Runs a test with pushes in one chunk, and in as many chunks as there can be."""
    sizes = pytest.mark.parametrize("chunk_bytes", [overlap.CHUNK_BYTES, 256], indirect=True)
    return pytest.mark.usefixtures("chunk_bytes")(sizes(test))


@pytest.fixture(autouse=True)
def merging_takes_nothing(monkeypatch):
    """Merges in place, as kernels do on GPUs. PyTorch's own operators make copies."""
    for kind in (Accumulator, Sum):
        monkeypatch.setattr(kind, "_combine", lambda self, into: into)


def problem_of(heads=(16, 4), dtype="bfloat16", direction="forward", dim_v=HEAD_DIM):
    mask = masks.build("full", SEQLEN)
    fields = {
        "head_dim": HEAD_DIM,
        "head_dim_v": dim_v,
        "dtype": dtype,
        "direction": direction,
        "device": Device("cpu"),
    }
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], **fields)


class Still(Link):
    """A link whose peers do nothing. All of its ranks have this rank's windows."""

    def __init__(self, group, windows):
        self.size, self.index, self.deadline, self._windows = group.size(), group.rank(), 1, windows
        self._held = []

    def _window(self, shape, dtype):
        memory = torch.empty(tuple(shape), dtype=dtype)
        self._windows.append(memory)
        return Window((memory,) * self.size, self.index)

    def slots(self, count):
        return Slots(0, count)

    def numbers(self, value):
        return [value] * self.size

    def send(self, index, moves, slot, early=False):
        self._held += [source for _, source in moves]

    def joined(self):
        self._held.clear()

    def nothing(self, *_, **about):
        """Moves nothing."""

    restart = copy = post = expect = _follow = _push = _post = _expect = nothing


@contextmanager
def no_links():
    yield []


@contextmanager
def still_links(only=None):
    """Links whose peers do nothing, on all axes of several ranks or on some, and the list of their windows."""
    windows, links = [], {}

    def links_of(groups, device, transport):
        has_link = {axis: group.size() > 1 and (only is None or axis in only) for axis, group in groups.items()}
        return {
            axis: links.setdefault(group, Still(group, windows)) if has_link[axis] else None
            for axis, group in groups.items()
        }

    with mock.patch.object(exchange, "links_of", links_of):
        yield windows


def allocated(strategy, axis_sizes, problem, links=no_links):
    """The peak of a call with its windows, and the bytes that a forward kept beyond its output."""
    placement = "contiguous" if strategy == "ulysses" else "zigzag"
    layout = registry().layout(strategy, problem, axis_sizes, placement)
    dtype, tokens = getattr(torch, problem.dtype), layout.shard_size(0)
    with world(layout.world_size), links() as windows:
        mesh = init_device_mesh("cpu", tuple(axis_sizes.values()), mesh_dim_names=tuple(axis_sizes))
        transport = Transport.COLLECTIVES if links is no_links else Transport.COPY_ENGINE
        subject = registry().load_strategy(strategy)(mesh, transport=transport)
        plan = subject.plan(problem, layout, Idle())
        (heads_q, heads_kv), (dim, dim_v) = (problem.heads_q, problem.heads_kv), problem.dims
        shapes = (heads_q, dim), (heads_kv, dim), (heads_kv, dim_v), (heads_q, dim_v)
        q, k, v, dout = (torch.empty((tokens, *shape), dtype=dtype) for shape in shapes)
        kept = [] if problem.direction == "backward" else None
        out, lse = subject.forward(q, k, v, plan, kept=kept)
        if problem.direction == "forward":
            with Peak(q, k, v, out, lse, *windows) as peak:
                subject.forward(q, k, v, plan)
            return peak.most + window_bytes(), 0
        saved = q, k, v, out, lse
        subject.backward(dout, *saved, plan, kept=kept)  # makes windows
        with Peak(dout, *saved, *kept, *windows) as peak:
            subject.backward(dout, *saved, plan, kept=kept)
        return peak.most + window_bytes(), sum(x.nbytes for x in kept if x.dim() == 3)


@in_chunks
@pytest.mark.parametrize(
    ("heads", "dtype", "direction", "dim_v"),
    [
        ((16, 4), "bfloat16", "backward", 128),
        ((16, 4), "bfloat16", "forward", 64),
        ((8, 2), "float32", "backward", 192),
    ],
)
@pytest.mark.parametrize("pushes", [False, True])
@pytest.mark.parametrize(("strategy", "axis_sizes"), MESHES, ids=str)
def test_a_call_takes_what_the_formula_says_and_no_more(strategy, axis_sizes, pushes, heads, dtype, direction, dim_v):
    problem = problem_of(heads, dtype, direction, dim_v)
    transport, links = (Transport.COPY_ENGINE, still_links) if pushes else (Transport.COLLECTIVES, no_links)
    most = peak_bytes(strategy, problem, axis_sizes, transport=transport)
    peak, kept = allocated(strategy, axis_sizes, problem, links)
    lse = SEQLEN // prod(axis_sizes.values()) * heads[0] * 4
    assert CLOSE * most <= peak <= most + LSES * lse
    if direction == "backward":
        assert kept == kept_bytes(strategy, problem, axis_sizes)


@in_chunks
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("strategy", "axis_sizes", "pushes"),
    [
        (strategy, axis_sizes, pushes)
        for strategy, axis_sizes in (
            ("usp", {"ring": 4, "ulysses": 2}),
            ("loongtrain", {"outer": 3, "inner": 2, "heads": 2}),
        )
        for count in range(1, len(axis_sizes))
        for pushes in combinations([axis for axis, size in axis_sizes.items() if size > 1], count)
    ],
    ids=str,
)
def test_windows_count_where_some_axes_push(strategy, axis_sizes, pushes, direction):
    problem = problem_of((16, 4), direction=direction)
    share = Share.of(problem, axis_sizes, False, frozenset(pushes))
    most = _PEAKS[strategy][direction == "backward"](share, axis_sizes)
    peak, _ = allocated(strategy, axis_sizes, problem, partial(still_links, pushes))
    lse = SEQLEN // prod(axis_sizes.values()) * 16 * 4
    assert CLOSE * most <= peak <= most + LSES * lse


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("strategy", "axis_sizes"), MESHES, ids=str)
def test_the_formula_has_room_for_parts_of_whole_blocks(strategy, axis_sizes, direction):
    blocks = masks.build("uniform_block_sparse", SEQLEN, block=80, kept=1.0)
    problem = replace(problem_of((16, 4), direction=direction), mask=blocks)
    peak, _ = allocated(strategy, axis_sizes, problem)
    lse = (SEQLEN // prod(axis_sizes.values()) + 80) * 16 * 4
    assert peak <= peak_bytes(strategy, problem, axis_sizes) + LSES * lse


def test_a_rank_takes_its_tensors_and_what_the_strategy_allocates():
    problem = problem_of((16, 4))
    layout = registry().layout("ring_p2p", problem, {"ring": 2})
    found = rank_bytes(registry(), KernelMemory(shipped()), problem, ("sdpa", "sdpa"), layout)
    tokens, backward = SEQLEN // 2, replace(problem, direction="backward")
    gradients = gradient_bytes(problem, tokens, tokens)
    assert found.parts["tensors"] == tensor_bytes(problem, tokens, tokens, training=True)
    assert found.parts["gradients"] + found.parts["strategy"] == peak_bytes("ring_p2p", backward, {"ring": 2}, False)
    assert found.parts["gradients"] == gradients
    assert "kept" not in found.parts
