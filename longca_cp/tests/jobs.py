"""The jobs of the processes of a world. A job gets plain values and returns plain values. Every rank runs it."""

import os
import tempfile
import warnings
from functools import lru_cache
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import longca
from longca import masks
from longca.errors import UnsupportedError
from longca.kernels.base import Plan, fill
from longca.kernels.lse_grad import backward_through_lse
from longca.manifests import Device, Problem, Transport
from longca.parallel import layouts
from longca.parallel.layouts import _agree
from longca.parallel.pushes import watched
from longca_advice import shared_layout
from longca_advice.auto_kernel import Choice
from longca_advice.auto_layout import Arrangement
from longca_bench.measuring.traffic import Recorder, repeat, sent_by_kind
from longca_builtin.naive import Naive
from longca_cp.exchange import Axis, axes_of
from longca_cp.kv_ring import KVRing

NAMES = ("out", "lse", "dq", "dk", "dv")


def prepare():
    """Does the slow work of first use that needs no other rank."""
    attend(mask_of("causal", 3, ()), inputs(3, (2, 1), "float64"))
    for name in longca.registry().strategies:
        longca.registry().load_strategy(name)


@lru_cache(maxsize=64)
def mesh_of(sizes, order=None):
    """A mesh of named dims, given as ((name, size), …), in this order or another."""
    named = dict(sizes)
    names = order or tuple(named)
    return init_device_mesh("cpu", tuple(named[name] for name in names), mesh_dim_names=names)


@lru_cache(maxsize=8)
def mask_of(kind, seqlen, factors):
    """A pattern's mask, or a mask whose first and last queries see nothing and whose last keys nobody sees."""
    if kind == "gappy":
        third = seqlen // 3
        return masks.SliceMask([masks.Slice(third, 2 * third, 0, third, -seqlen, seqlen)], seqlen, seqlen)
    if kind == "empty":
        return masks.SliceMask([], seqlen, seqlen)
    return masks.build(kind, seqlen, **dict(factors))


@lru_cache(maxsize=8)
def inputs(seqlen, heads, dtype, head_dim=8):
    """q, k, v and dout of all tokens, the same on all ranks."""
    random = torch.Generator().manual_seed(seqlen)
    shapes = [(seqlen, h, head_dim) for h in (heads[0], heads[1], heads[1], heads[0])]
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(getattr(torch, dtype)) for shape in shapes]


@lru_cache(maxsize=8)
def expected(kind, seqlen, factors, heads, dtype, of="float64"):
    """The results of one process, computed in the dtype `of`."""
    tensors = [x.to(getattr(torch, of)) for x in inputs(seqlen, heads, dtype)]
    return attend(mask_of(kind, seqlen, factors), tensors)


def attend(mask, tensors, kernel="naive", **parallel):
    """out, lse, dq, dk and dv of longca.attention."""
    *qkv, dout = tensors
    qkv = [x.clone().requires_grad_() for x in qkv]
    out, lse = longca.attention(*qkv, mask, kernel=kernel, return_lse=True, **parallel)
    return [out.detach(), lse, *torch.autograd.grad(out, qkv, dout)]


def directly(mask, tensors, kernel, strategy, mesh, layout, keep, transport="auto"):
    """The same, by the strategy's own methods."""
    q, k, v, dout = tensors
    problem = problem_of(mask, q, k)
    made = longca.registry().load_strategy(strategy)(mesh, transport=Transport(transport))
    plan = made.plan(problem, layout, kernel)
    kept = [] if keep else None
    out, lse = made.forward(q, k, v, plan, kept=kept)
    return [out, lse, *made.backward(dout, q, k, v, out, lse, plan, kept=kept)]


def problem_of(mask, q, k):
    dtype = str(q.dtype).removeprefix("torch.")
    sizes = {"heads_q": q.shape[1], "heads_kv": k.shape[1], "head_dim": q.shape[2]}
    return Problem(mask=mask, dtype=dtype, device=Device("cpu"), direction="backward", **sizes)


def rank_of(sizes, order):
    """This process's rank in the layout, from its coordinates."""
    coordinate = dict(zip(order or dict(sizes), mesh_of(sizes, order).get_coordinate(), strict=True))
    return int(np.ravel_multi_index([coordinate[name] for name, _ in sizes], [size for _, size in sizes]))


def worst(
    strategy,
    sizes,
    kind,
    seqlen,
    factors,
    placement,
    heads,
    dtype="float64",
    order=None,
    way="attention",
    kernel="naive",
    transport="auto",
):
    """The largest error of each tensor on this rank against the results of one process.

    Without such a layout, the reason. `way` is `attention`, or a way to call the strategy's own methods: with the
    tensors that the forward `kept`, with tensors `exchanged` again, with a `differentiable` kernel, or in the order
    `by_nccl`.
    """
    mask, mesh = mask_of(kind, seqlen, factors), mesh_of(sizes, order)
    given = inputs(seqlen, heads, dtype)
    about = {"strategy": strategy, "mesh": mesh, "placement": placement, "kernel": kernel}
    try:
        layout = longca.layout(mask, heads=heads, head_dim=8, dtype=dtype, **about)
    except UnsupportedError as error:
        return str(error)
    rank = rank_of(sizes, order)
    mine = [layout.shard(x, rank) for x in given]
    if way == "attention":
        results = attend(mask, mine, transport=transport, **about)
    else:
        computes = Differentiable() if way == "differentiable" else Naive()
        by_nccl = mock.patch.object(Axis, "by_nccl", property(lambda _: way == "by_nccl"))
        with by_nccl:
            results = directly(mask, mine, computes, strategy, mesh, layout, way == "kept", transport)
    wanted = expected(kind, seqlen, factors, heads, dtype)
    return dict(zip(NAMES, errors(results, wanted, layout, rank), strict=True))


def mixed(*about):
    """The errors of a case whose steps take the kernels of a mix by turns, this rank's steps, and their kernels."""
    names = []

    def taken(registry, mix, step):
        valid = [name for name, verdict in registry.ways(mix, step).items() if verdict]
        names.append(valid[len(names) % len(valid)])
        return names[-1]

    with mock.patch("longca.kernels.mix.taken", taken):
        return worst(*about, kernel="naive|sdpa"), len(names), names


def errors(results, wanted, layout, rank):
    """The largest difference of each tensor, with an lse of −∞ in just the same places, and out 0 there."""
    out, lse, *grads = results
    unseen = lse == -torch.inf
    mine = [layout.shard(x, rank) for x in (wanted[0], wanted[1].T, *wanted[2:])]
    assert torch.equal(unseen, -torch.inf == mine[1].T)
    assert not out.transpose(0, 1)[unseen].any()
    assert all(x.dtype is results[0].dtype and x.is_contiguous() for x in (out, *grads))
    mine_lse = mine[1].T.masked_fill(unseen, 0)
    pairs = [(out, mine[0]), (lse.masked_fill(unseen, 0), mine_lse), *zip(grads, mine[2:], strict=True)]
    return [(a.double() - b.double()).abs().max().item() if a.numel() else 0.0 for a, b in pairs]


def own_error(kind, seqlen, factors, heads, dtype):
    """The errors of one process in a dtype."""
    pairs = zip(
        expected(kind, seqlen, factors, heads, dtype, dtype), expected(kind, seqlen, factors, heads, dtype), strict=True
    )
    return dict(zip(NAMES, [(a.double() - b).nan_to_num().abs().max().item() for a, b in pairs], strict=True))


def sent(strategy, sizes, kind, seqlen, factors, placement, heads):
    """Bytes that this rank sends, by kind, forward and then backward."""
    mask, mesh = mask_of(kind, seqlen, factors), mesh_of(sizes)
    layout = longca.layout(
        mask, strategy=strategy, mesh=mesh, placement=placement, heads=heads, head_dim=8, dtype="float32"
    )
    q, k, v, dout = (layout.shard(x, rank_of(sizes, None)) for x in inputs(seqlen, heads, "float32"))
    made = longca.registry().load_strategy(strategy)(mesh)
    plan, kept = made.plan(problem_of(mask, q, k), layout, Naive()), []
    with Recorder() as forward:
        out, lse = made.forward(q, k, v, plan, kept=kept)
    with Recorder() as backward:
        made.backward(dout, q, k, v, out, lse, plan, kept=kept)
    return tuple(dict(sent_by_kind(recorder.collectives)) for recorder in (forward, backward))


def pushed_again(strategy, sizes, kind, factors):
    """Bytes of a forward and backward that leave this rank, by kind, and whether a call after more pushes is right."""
    mesh, seqlen, heads = mesh_of(sizes), 40, (8, 2)
    mask, given = mask_of(kind, seqlen, factors), inputs(seqlen, heads, "float64")
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive"}
    layout = longca.layout(mask, heads=heads, head_dim=8, dtype="float64", placement="contiguous", **about)
    mine = [layout.shard(x, mesh.get_rank()) for x in given]
    about |= {"placement": layout, "transport": "copy_engine"}
    before = attend(mask, mine, **about)
    with watched() as pushes, Recorder() as recorder:
        attend(mask, mine, **about)
    dist.barrier()
    recorder.add(pushes)
    sizes_sent = sent_by_kind(recorder.collectives)
    repeat([each for each in recorder.collectives if each.kind == "push"])
    dist.barrier()
    return dict(sizes_sent), all(map(torch.equal, before, attend(mask, mine, **about)))


class Differentiable:
    """A kernel that is differentiable in (out, lse) and no more, as FlexAttention is."""

    def plan(self, problem):
        return Plan(problem, masks.Form.DENSE, "einsum")

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result, sums = self._attend(plan, q, k, v)
        return fill(out, result), fill(lse, sums)

    def backward(self, dout, q, k, v, out, lse, plan, *, dq=None, dk=None, dv=None):
        grads = backward_through_lse(lambda *qkv: self._attend(plan, *qkv), dout, q, k, v, out, lse)
        return tuple(fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))

    def _attend(self, plan, q, k, v):
        visible = torch.from_numpy(plan.problem.concrete_mask.dense())
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) * plan.problem.scale
        seen = visible.any(-1)
        scores = scores.masked_fill(~visible & seen[:, None], -torch.inf)
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None]).exp() * visible
        return torch.einsum("hij,jhd->ihd", weights, v), lse.masked_fill(~seen, -torch.inf)


def said(call):
    """The error that a call raises, and its kind."""
    try:
        call()
    except longca.errors.LongCAError as error:
        return type(error).__name__, str(error)
    return None


def refusals(size):
    """The refusals of longca.attention, by the name of the error."""
    mask, mesh = mask_of("causal", 40, ()), mesh_of((("ring", size),))
    about = {"strategy": "ring_p2p", "mesh": mesh, "placement": "zigzag", "kernel": "naive"}
    layout = longca.layout(mask, heads=(4, 2), head_dim=8, dtype="float64", **about)
    qkv = [layout.shard(x, mesh.get_rank()) for x in inputs(40, (4, 2), "float64")[:3]]
    wrong = {
        "no mesh": {"mesh": None},
        "no strategy": {"strategy": None},
        "strategy": {"strategy": "ring"},
        "strategy, no mesh": {"strategy": "uliss", "mesh": None},
        "placement": {"placement": "zig_zag"},
        "kernel": {"kernel": "naiv"},
        "axes": {"strategy": "usp"},
        "sizes for a mesh": {"mesh": {"ring": size}},
        "group for a mesh": {"mesh": dist.group.WORLD},
    }
    found = {name: said(lambda m=more: longca.attention(*qkv, mask, **{**about, **m})) for name, more in wrong.items()}
    found["shard"] = said(lambda: longca.attention(*(x[1:] for x in qkv), mask, **about))
    three = [x.repeat_interleave(3, dim=1)[:, :3] for x in qkv]
    found["heads"] = said(
        lambda: longca.attention(*three, mask, strategy="ulysses", mesh=mesh_of((("ulysses", size),)))
    )
    return found


def others_layouts(size):
    """The refusals of longca.attention for layouts of another call, by the difference."""
    mesh, given = mesh_of((("ring", size),)), {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    causal, window = masks.build("causal", 40), masks.build("causal_sliding_window", 40, window=3)
    about = {"strategy": "ring_all_gather", "mesh": {"ring": size}, "device": Device("cpu"), "placement": "contiguous"}
    made = {
        "mask": longca.layout(window, **about, **given),
        "tokens": longca.layout(masks.build("causal", 38), **about, **given),
        "strategy": longca.layout(causal, **{**about, "strategy": "ring_p2p"}, **given),
        "ranks": longca.layout(causal, **{**about, "mesh": {"ring": 2 * size}}, **given),
        "heads": longca.layout(causal, **about, **{**given, "heads": (8, 2)}),
    }
    found, rank = {}, mesh.get_rank()
    for name, layout in made.items():
        rows = torch.from_numpy(layout.positions(rank))
        qkv = [x[rows] for x in inputs(40, (4, 2), "float64")[:3]]
        call = {"strategy": "ring_all_gather", "mesh": mesh, "placement": layout, "kernel": "naive"}
        found[name] = said(lambda c=call, x=qkv: longca.attention(*x, causal, **c))
    return found


def one_placement_for_two_masks(size):
    """The largest error where a ring is given the layout of a window mask for a causal one."""
    mesh, window = mesh_of((("ring", size),)), mask_of("causal_sliding_window", 40, (("window", 3),))
    about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive"}
    layout = longca.layout(window, heads=(4, 2), head_dim=8, dtype="float64", placement="zigzag", **about)
    mask, given, rank = mask_of("causal", 40, ()), inputs(40, (4, 2), "float64"), mesh.get_rank()
    mine = attend(mask, [layout.shard(x, rank) for x in given], placement=layout, **about)
    return max(errors(mine, attend(mask, given), layout, rank))


def layers_of_two_masks(strategy, sizes, placement, kinds):
    """The layouts' names, and the largest errors of out and gradients through layers of two masks in turn.

    The layers share a placement: `kinds` are ((kind, factors, weight), …).
    """
    mesh, given, heads = mesh_of(sizes), inputs(60, (4, 4), "float64"), (4, 4)
    weighed = [(mask_of(kind, 60, factors), weight) for kind, factors, weight in kinds]
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive"}
    made = longca.layout(weighed, heads=heads, head_dim=8, dtype="float64", placement=placement, **about)

    def results(tensors, calls):
        qkv = [x.clone().requires_grad_() for x in tensors[:3]]
        out, (_, k, v) = qkv[0], qkv
        for (mask, _), more in (*zip(weighed, calls, strict=True), *zip(weighed, calls, strict=True)):
            out = longca.attention(out, k, v, mask, **more) + qkv[0]
        return [out.detach(), *torch.autograd.grad(out, qkv, tensors[3])]

    rank = mesh.get_rank()
    mine = results([made[0].shard(x, rank) for x in given], [about | {"placement": each} for each in made])
    alone = [made[0].shard(x, rank) for x in results(given, [{"kernel": "naive"}] * 2)]
    worst = max((a - b).abs().max().item() for a, b in zip(mine, alone, strict=True))
    return [(each.strategy, each.placement, each.shards) for each in made], worst


def asked_by_one_rank(size):
    """Whether all ranks still agree when one of them has asked for many layouts by itself."""
    mask, mesh = masks.build("causal", 40), mesh_of((("ring", size),))
    about = {"strategy": "ring_p2p", "kernel": "naive"}
    given = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    layout = longca.layout(mask, mesh=mesh, **about, **given)
    if mesh.get_rank() == 0:
        for tokens in range(10, 80):
            other = masks.build("causal", tokens)
            longca.layout(other, mesh={"ring": 4}, device=Device("cpu"), **about, **given)
    mine = [layout.shard(x, mesh.get_rank()) for x in inputs(40, (4, 2), "float64")]
    return list(attend(mask, mine, mesh=mesh, **about)[0].shape)


def prefetched(size, strategy, placement, transport="auto"):
    """For masks that change: the plans that each call made, its largest error, and whether the prefetch had ended."""
    mesh, given = mesh_of(((("ulysses" if strategy == "ulysses" else "ring"), size),)), inputs(40, (4, 2), "float64")
    rank, found = mesh.get_rank(), []
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "placement": placement}
    asked = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    with mock.patch.object(Naive, "plan", autospec=True, side_effect=Naive.plan) as plan:
        for tokens in range(7, 12):
            mask = masks.build("causal_document", 40, documents=[tokens, 40 - tokens])
            handle = longca.prefetch(mask, **asked, **about, transport=transport)
            if tokens % 2:
                handle.wait()  # else the call may come while the plan is under way
            before = plan.call_count
            layout = longca.layout(mask, **asked, **about)
            mine = attend(mask, [layout.shard(x, rank) for x in given], **about, transport=transport)
            made = plan.call_count - before if tokens % 2 else 0
            found.append((made, max(errors(mine, attend(mask, given), layout, rank)), handle.done()))
    return found


def placed_ahead(size, strategy):
    """The choices that `longca.layout` made after a prefetch had ended, and all shards and choices."""
    mesh, window = mesh_of((("cp", size),)), masks.build("causal_sliding_window", 40, window=9)
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    made, shards = 0, []
    with mock.patch.object(shared_layout, "_arranged", side_effect=shared_layout._arranged) as arranged:
        for tokens in range(7, 12):
            documents = masks.build("causal_document", 40, documents=[tokens, 40 - tokens])
            handle = longca.prefetch([(documents, 1), (window, 5)], softmax_scale=0.5, **about)
            if is_early := tokens % 2:
                handle.wait()  # else the layout may be asked for while the placement is under way
            before = arranged.call_count
            shards += [layout.shards for layout in longca.layout([(documents, 1), (window, 5)], **about)]
            made += is_early * (arranged.call_count - before)
            handle.wait()
    return made, shards, arranged.call_count


def prefetched_together(size):
    """Results beside a side thread that plans while this thread communicates, of ranks that wait differently."""
    mesh, given = mesh_of((("ring", size),)), inputs(40, (4, 2), "float64")
    rank, worst = mesh.get_rank(), 0.0
    about = {"strategy": "auto", "mesh": mesh, "kernel": "naive"}
    asked = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    drawn = [masks.build("causal_document", 40, documents=[n, 40 - n]) for n in range(3, 33)]
    ahead = longca.prefetch(drawn[0], **asked, **about)
    for n, mask in enumerate(drawn):
        if rank == n % size:
            ahead.wait()
        if n + 1 < len(drawn):
            ahead = longca.prefetch(drawn[n + 1], **asked, **about)
        layout = longca.layout(mask, **asked, **about)
        mine = attend(mask, [layout.shard(x, rank) for x in given], **about)
        worst = max(worst, *errors(mine, attend(mask, given), layout, rank))
    return worst


def outside(_size):
    """The refusals for a process outside the mesh, by placement. None for the process inside."""
    mesh, mask = DeviceMesh("cpu", [0], mesh_dim_names=("ring",)), mask_of("causal", 40, ())
    qkv = inputs(40, (4, 2), "float64")[:3]
    about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive"}
    found = [said(lambda p=name: longca.attention(*qkv, mask, placement=p, **about)) for name in ("zigzag", "auto")]
    given = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    return [*found, said(lambda: longca.layout(mask, **about, **given))]


def again(size):
    """The largest errors in a world, and in one that was made after that was destroyed, with an equal mesh."""
    mask, given, found = mask_of("causal", 40, ()), inputs(40, (4, 2), "float64"), []
    with tempfile.TemporaryDirectory() as folder:
        said = [folder]
        dist.broadcast_object_list(said)  # all ranks meet in the first one's
        for turn in range(2):
            mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("ring",))
            about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive", "placement": "zigzag"}
            layout = longca.layout(mask, heads=(4, 2), head_dim=8, dtype="float64", **about)
            rank = mesh.get_rank()
            mine = attend(mask, [layout.shard(x, rank) for x in given], **about)
            found.append(max(errors(mine, attend(mask, given), layout, rank)))
            dist.barrier()
            if turn == 0:
                dist.destroy_process_group()
                store = dist.FileStore(f"{said[0]}/store", size)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return found


def under_autocast(size):
    """The largest error of out and gradients in float32, against the same without autocast."""
    mask, mesh = mask_of("causal", 40, ()), mesh_of((("ring", size),))
    about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive", "placement": "zigzag"}
    layout = longca.layout(mask, heads=(4, 2), head_dim=8, dtype="float32", **about)
    mine = [layout.shard(x, mesh.get_rank()) for x in inputs(40, (4, 2), "float32")]
    plain = attend(mask, mine, **about)
    with torch.autocast("cpu", torch.bfloat16):
        cast = attend(mask, mine, **about)
    return max((x - y).abs().max().item() for x, y in zip(plain, cast, strict=True))


def reused(size):
    """How often a strategy plans when several layers, and a later step, have one mask."""
    strategy = longca.registry().load_strategy("ring_p2p")
    planned, plan = [], strategy.plan
    strategy.plan = lambda *args: planned.append(1) or plan(*args)
    try:
        mask, mesh = masks.build("causal", 41), mesh_of((("ring", size),))
        about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive"}
        layout = longca.layout(mask, heads=(4, 2), head_dim=8, dtype="float64", **about)
        mine = [layout.shard(x, mesh.get_rank()) for x in inputs(41, (4, 2), "float64")]
        results = [attend(mask, mine, **about, placement=p) for p in ("auto", "auto", layout, layout)]
    finally:
        strategy.plan = plan
    same = all(torch.equal(x, y) for result in results[1:] for x, y in zip(result, results[0], strict=True))
    return len(planned), same


def without_gradients(size):
    """Whether evaluation gives the same out as training on the same shards, and whether it asked for gradients."""
    mask, mesh = mask_of("causal_document", 60, (("documents", (20, 40)),)), mesh_of((("ring", size),))
    layout = longca.layout(mask, strategy="ring_all_gather", mesh=mesh, heads=(4, 2), head_dim=8, dtype="float64")
    mine = [layout.shard(x, mesh.get_rank()) for x in inputs(60, (4, 2), "float64")]
    about = {"strategy": "ring_all_gather", "mesh": mesh}
    trained = attend(mask, mine, kernel="auto", **about)[0]
    out = longca.attention(*mine[:3], mask, **about)
    return torch.equal(trained, out), out.requires_grad


def two_layers(size, compiled):
    """The largest error of the gradients through two layers in a row."""
    mask, mesh = mask_of("causal", 50, ()), mesh_of((("ring", size),))
    about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive", "placement": "zigzag"}
    layout = longca.layout(mask, heads=(4, 4), head_dim=8, dtype="float64", **about)
    given = inputs(50, (4, 4), "float64")

    def twice(q, k, v, **parallel):
        first = longca.attention(q * 2, k, v, mask, **parallel)
        return longca.attention(first + q, k, v, mask, **parallel)

    def grads(tensors, function, **parallel):
        qkv = [x.clone().requires_grad_() for x in tensors[:3]]
        return torch.autograd.grad(function(*qkv, **parallel), qkv, tensors[3])

    rank = mesh.get_rank()
    function = torch.compile(twice, backend="eager") if compiled else twice
    with warnings.catch_warnings():
        # Where a graph goes on after a break, the compiler asks tensors that are no leaves for their gradients.
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")
        mine = grads([layout.shard(x, rank) for x in given], function, **about)
    alone = [layout.shard(x, rank) for x in grads(given, twice, kernel="naive")]
    return max((a - b).abs().max().item() for a, b in zip(mine, alone, strict=True))


def in_part_of_a_mesh(size):
    """The largest error of two data-parallel groups with inputs of their own, on a mesh of (dp, ring)."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "ring"))
    mask = mask_of("causal", 50, ())
    about = {"strategy": "ring_p2p", "mesh": mesh["ring"], "kernel": "naive", "placement": "zigzag"}
    layout = longca.layout(mask, heads=(4, 2), head_dim=8, dtype="float64", **about)
    group, rank = mesh.get_coordinate()
    given = [x + group for x in inputs(50, (4, 2), "float64")]
    alone = attend(mask, given)
    return max(errors(attend(mask, [layout.shard(x, rank) for x in given], **about), alone, layout, rank))


def repeated(strategy, sizes, kind, factors):
    """Whether equal inputs give equal bits."""
    mask, mesh = mask_of(kind, 60, factors), mesh_of(sizes)
    about = {"strategy": strategy, "mesh": mesh, "placement": "contiguous", "kernel": "naive"}
    layout = longca.layout(mask, heads=(8, 2), head_dim=8, dtype="float32", **about)
    mine = [layout.shard(x, rank_of(sizes, None)) for x in inputs(60, (8, 2), "float32")]
    first, second = (attend(mask, mine, **about) for _ in range(2))
    return all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def ring_buffers(size):
    """How many different places a ring's keys are in over a whole round, and whether each rank saw all keys."""
    ring_axis = axes_of(mesh_of((("ring", size),)), ("ring",))[1][0]
    tokens = [3 + rank % 2 for rank in range(size)]
    mine = torch.full((tokens[ring_axis.index], 2, 4), float(ring_axis.index))
    ring, places, seen = KVRing(ring_axis, tokens, mine, mine + 100), set(), []
    for _ in range(size):
        ring.send()
        places.add(ring.k.data_ptr())
        assert torch.equal(ring.k + 100, ring.v)
        seen.append((len(ring.k), int(ring.k[0, 0, 0])))
        ring.wait()
    return len(places), seen == [(tokens[s], s) for s in ((ring_axis.index - i) % size for i in range(size))]


def first_choice(size):
    """The placement that ranks agree on, when each would have chosen another."""
    return _agree(mesh_of((("ring", size // 2), ("ulysses", 2))), f"choice of {dist.get_rank()}")


def fail_on(rank):
    """Raises on one rank, while the others wait for it."""
    if dist.get_rank() == rank:
        raise ValueError("as it was to")
    dist.barrier()


def vanish():
    """Ends the last rank's process, while the others wait for it."""
    if dist.get_rank() == dist.get_world_size() - 1:
        os._exit(3)
    dist.barrier()


def by_auto(size):
    """The strategy that auto is, and the largest errors of calls with it: placed alike, and by the layout."""
    mask, mesh = mask_of("causal", 60, ()), mesh_of((("cp", size),))
    given = inputs(60, (4, 2), "float64")
    layout = longca.layout(mask, strategy="auto", mesh=mesh, heads=(4, 2), head_dim=8, dtype="float64", kernel="naive")
    mine = [layout.shard(x, mesh.get_rank()) for x in given]
    about, alone = {"strategy": "auto", "mesh": mesh, "kernel": "naive"}, attend(mask, given)
    results = (attend(mask, mine, **about, placement=placement) for placement in ("auto", layout))
    return layout.strategy, [max(errors(result, alone, layout, mesh.get_rank())) for result in results]


def arranged_by_the_first(size):
    """The strategy that auto is where each rank would take another."""
    mask, mesh = mask_of("causal", 64, ()), mesh_of((("cp", size),))
    mine = ("ulysses", "ring_p2p")[mesh.get_rank()], "contiguous"
    made = Arrangement(*mine, Choice("naive", "a test's", "it says so"))
    with mock.patch.object(layouts, "arranged", return_value=made):
        return longca.layout(mask, strategy="auto", mesh=mesh, heads=(4, 2), head_dim=8, dtype="float64").strategy


def chosen(strategy, sizes, choice, order=None):
    """The digest of the mask that ranks choose together and of the choice of one process, and errors of attention."""
    mesh, given = mesh_of(sizes, order), inputs(101, (8, 4), "float32")
    blocks = choice.get("q_bounds") or [*range(0, 101, choice["block"]), 101]
    everything = masks.BlockSparseMask(np.ones([len(blocks) - 1] * 2, bool), blocks, blocks)
    about = {"strategy": strategy, "mesh": mesh, "placement": "contiguous", "kernel": "naive"}
    layout = longca.layout(everything, heads=(8, 4), head_dim=8, dtype="float32", **about)
    rank = rank_of(sizes, order)
    mine = [layout.shard(x, rank) for x in given]
    mask = longca.choose_blocks(*mine[:2], **choice, layout=layout, mesh=mesh)
    alone = longca.choose_blocks(*given[:2], **choice)
    results = attend(mask, mine, **about)
    return mask.digest, alone.digest, max(errors(results, attend(alone, given), layout, rank))


def choice_refusals(size):
    """The refusals of choose_blocks for tokens that ranks share, by the reason."""
    mesh, mask = mesh_of((("ring", size),)), masks.build("causal", 40)
    sizes = {"ring": size}
    given = {"strategy": "ring_p2p", "heads": (4, 2), "placement": "contiguous", "device": Device("cpu")}
    layout, larger = (longca.layout(mask, mesh={"ring": n}, **given) for n in (size, 2 * size))
    q, k = (layout.shard(x, mesh.get_rank()) for x in inputs(40, (4, 2), "float32")[:2])
    asked = {
        "mesh": (q, k, layout, None),
        "sizes": (q, k, layout, sizes),
        "layout": (q, k, None, mesh),
        "ranks": (q, k, larger, mesh),
        "shard": (q[1:], k, layout, mesh),
    }
    return {
        name: said(lambda a=each: longca.choose_blocks(*a[:2], block=8, layout=a[2], mesh=a[3]))
        for name, each in asked.items()
    }


def disagreement(size, what):
    """What each rank is told if the last rank's call differs in one thing, and how the next call goes."""
    mesh, causal = mesh_of((("ring", size),)), masks.build("causal", 40)
    is_last, rank = mesh.get_rank() == size - 1, mesh.get_rank()
    about = {"strategy": "ring_p2p", "mesh": mesh, "placement": "zigzag", "kernel": "naive"}
    layout = longca.layout(causal, heads=(4, 2), head_dim=8, dtype="float64", **about)
    given, mask, other = inputs(40, (4, 2), "float64"), causal, {}
    mine = [layout.shard(x, rank) for x in given]
    qkv = mine[:3]
    if is_last:
        mask = masks.build("full", 40) if what == "mask" else causal
        other = {
            "transport": {"transport": "collectives"},
            "transport that is none": {"transport": "pigeons"},
            "strategy": {"strategy": "ring_all_gather"},
            "unknown strategy": {"strategy": "ring"},
            "placement": {"placement": "contiguous"},
            "layout": {"placement": layout},
            "kernel": {"kernel": "sdpa"},
            "softmax_scale": {"softmax_scale": 0.5},
            "deterministic": {"deterministic": True},
            "allow_unverified": {"allow_unverified": True},
        }.get(what, {})
        changed = {
            "heads": lambda x: x[:, :2],
            "head_dim": lambda x: x[..., :4].contiguous(),
            "dtype": torch.Tensor.float,
            "direction": lambda x: x.clone().requires_grad_(),
            "shard length": lambda x: x[1:],
            "no tensors": lambda x: None,
        }.get(what)
        qkv = [changed(x) for x in qkv] if changed else qkv
    found = said(lambda: longca.attention(*qkv, mask, **{**about, **other}))
    again = max(errors(attend(causal, mine, **about), attend(causal, given), layout, rank))
    return found, again


def call_of_one_rank(seconds):
    """What the first rank is told if it makes a mask anew while the others reuse theirs."""
    mesh, rank = mesh_of((("ring", 2),)), dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    before, asked = store.timeout, {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive", "placement": "contiguous"}
    store.set_timeout(seconds)
    try:
        mask = masks.build("causal", 40)
        qkv = [x[20 * rank : 20 * rank + 20] for x in inputs(40, (4, 2), "float64")[:3]]
        longca.attention(*qkv, mask, **asked)
        return said(lambda: longca.attention(*qkv, masks.build("causal", 40), **asked)) if rank == 0 else None
    finally:
        store.set_timeout(before)
