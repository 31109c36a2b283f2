"""The jobs of results: out, lse and gradients of strategies beside those of one process."""

import warnings
from unittest import mock

import torch
from jobs import NAMES, attend, directly, errors, expected, inputs, mask_of, mesh_of, rank_of
from torch.distributed.device_mesh import init_device_mesh

import longca
from longca import masks
from longca.errors import UnsupportedError
from longca_builtin.naive import Naive
from longca_cp.exchange import Axis


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
    dims=(8, 8),
):
    """The largest error of each tensor on this rank against the results of one process.

    Without such a layout, the reason. `way` is `attention`, or a way to call the strategy's own methods: with the
    tensors that the forward `kept`, with tensors `exchanged` again, or in the order `by_nccl`.
    """
    mask, mesh = mask_of(kind, seqlen, factors), mesh_of(sizes, order)
    given = inputs(seqlen, heads, dtype, dims)
    about = {"strategy": strategy, "mesh": mesh, "placement": placement, "kernel": kernel}
    try:
        layout = longca.layout(mask, heads=heads, head_dim=dims[0], head_dim_v=dims[1], dtype=dtype, **about)
    except UnsupportedError as error:
        return str(error)
    rank = rank_of(sizes, order)
    mine = [layout.shard(x, rank) for x in given]
    if way == "attention":
        results = attend(mask, mine, transport=transport, **about)
    else:
        with mock.patch.object(Axis, "by_nccl", property(lambda _: way == "by_nccl")):
            results = directly(mask, mine, Naive(), strategy, mesh, layout, way == "kept", transport)
    wanted = expected(kind, seqlen, factors, heads, dtype, dims=dims)
    return dict(zip(NAMES, errors(results, wanted, layout, rank), strict=True))


def worst_of(strategy, sizes, cases):
    """The result of `worst` for each case."""
    return [worst(strategy, sizes, **{name: case[name] for name in case if name != "most"}) for case in cases]


def own_error(kind, seqlen, factors, heads, dtype):
    """The errors of one process in a dtype."""
    pairs = zip(
        expected(kind, seqlen, factors, heads, dtype, dtype), expected(kind, seqlen, factors, heads, dtype), strict=True
    )
    return dict(zip(NAMES, [(a.double() - b).nan_to_num().abs().max().item() for a, b in pairs], strict=True))


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


def other_settings(strategy, sizes):
    """The largest error of calls with one mask that differ in the scale or the cap of scores, one after another."""
    mask, mesh, given = masks.build("causal", 40), mesh_of(sizes), inputs(40, (4, 2), "float64")
    about = {"strategy": strategy, "mesh": mesh, "kernel": "naive", "placement": "auto"}
    layout = longca.layout(mask, heads=(4, 2), head_dim=8, dtype="float64", **about)
    rank, worst = mesh.get_rank(), 0.0
    mine = [layout.shard(x, rank) for x in given]
    for scale, cap in ((None, None), (0.5, None), (None, 1.0), (0.5, 2.0), (None, None)):
        settings = {"softmax_scale": scale, "softcap": cap}
        results = attend(mask, mine, **settings, **about)
        worst = max(worst, *errors(results, attend(mask, given, **settings), layout, rank))
    return worst


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


def with_sinks(strategy, sizes, kind, factors, placement, transport):
    """The largest errors of out and the four gradients on this rank, with sinks, against those of one process."""
    mask, mesh, heads = mask_of(kind, 101, factors), mesh_of(sizes), (8, 4)
    about = {"strategy": strategy, "mesh": mesh, "placement": placement, "kernel": "naive"}
    layout, rank = longca.layout(mask, heads=heads, head_dim=8, dtype="float64", **about), rank_of(sizes, None)

    def results(tensors, **parallel):
        *qkv, dout = tensors
        leaves = [x.clone().requires_grad_() for x in (*qkv, torch.linspace(-2, 3, 8, dtype=torch.float64))]
        out = longca.attention(*leaves[:3], mask, sinks=leaves[3], **{"kernel": "naive", **parallel})
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]

    given = inputs(101, heads, "float64")
    *mine, dsinks = results([layout.shard(x, rank) for x in given], transport=transport, **about)
    *whole, wanted = results(given)
    torch.distributed.all_reduce(dsinks)
    pairs = zip([*mine, dsinks], [*(layout.shard(x, rank) for x in whole), wanted], strict=True)
    return [(a - b).abs().max().item() for a, b in pairs]
