"""The jobs of placements: those that several masks share, and those that `auto` takes."""

from unittest import mock

import torch
import torch.distributed as dist
from jobs import attend, errors, inputs, mask_of, mesh_of

import longca
from longca.adviser import Arrangement, Choice
from longca.parallel import layouts
from longca.parallel.layouts import _agree


def one_placement_for_two_masks(size):
    """The largest error where a ring is given the layout of a window mask for a causal one."""
    mesh, window = mesh_of((("ring", size),)), mask_of("causal_sliding_window", 40, (("window", 3),))
    about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive"}
    layout = longca.layout(window, heads=(4, 2), head_dim=8, dtype="float64", placement="zigzag", **about)
    mask, given, rank = mask_of("causal", 40, ()), inputs(40, (4, 2), "float64"), mesh.get_rank()
    mine = attend(mask, [layout.shard(x, rank) for x in given], placement=layout, **about)
    return max(errors(mine, attend(mask, given), layout, rank))


def layers_of_two_masks(strategy, sizes, placement, kinds, transport="auto"):
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
    calls = [about | {"placement": each, "transport": transport} for each in made]
    mine = results([made[0].shard(x, rank) for x in given], calls)
    alone = [made[0].shard(x, rank) for x in results(given, [{"kernel": "naive"}] * 2)]
    worst = max((a - b).abs().max().item() for a, b in zip(mine, alone, strict=True))
    return [(each.strategy, each.placement, each.shards) for each in made], worst


def first_choice(size):
    """The placement that ranks agree on, when each would have chosen another."""
    return _agree(mesh_of((("ring", size // 2), ("ulysses", 2))), f"choice of {dist.get_rank()}")


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
    with mock.patch.object(layouts, "adviser", return_value=mock.Mock(arrange=mock.Mock(return_value=made))):
        return longca.layout(mask, strategy="auto", mesh=mesh, heads=(4, 2), head_dim=8, dtype="float64").strategy
