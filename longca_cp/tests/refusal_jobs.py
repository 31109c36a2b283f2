"""The jobs of refusals: calls that are wrong on all ranks, or on one of them."""

from functools import partial

import torch
from jobs import attend, errors, inputs, mask_of, mesh_of, said
from torch.distributed.device_mesh import DeviceMesh

import longca
from longca import masks
from longca.manifests import Device


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
        "placement": {"placement": "zig_zag"},
        "kernel": {"kernel": "naiv"},
        "axes": {"strategy": "usp"},
        "sizes for a mesh": {"mesh": {"ring": size}},
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


def outside(_size):
    """The refusals for a process outside the mesh, by placement. None for the process inside."""
    mesh, mask = DeviceMesh("cpu", [0], mesh_dim_names=("ring",)), mask_of("causal", 40, ())
    qkv = inputs(40, (4, 2), "float64")[:3]
    about = {"strategy": "ring_p2p", "mesh": mesh, "kernel": "naive"}
    found = [said(lambda p=name: longca.attention(*qkv, mask, placement=p, **about)) for name in ("zigzag", "auto")]
    given = {"heads": (4, 2), "head_dim": 8, "dtype": "float64"}
    return [*found, said(lambda: longca.layout(mask, **about, **given))]


def disagreements(size, whats):
    """The result of `disagreement` for each thing."""
    return [disagreement(size, what) for what in whats]


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
            "strategy": {"strategy": "ring_all_gather"},
            "unknown strategy": {"strategy": "ring"},
            "placement": {"placement": "contiguous"},
            "kernel": {"kernel": "sdpa"},
            "softmax_scale": {"softmax_scale": 0.5},
            "softcap": {"softcap": 2.0},
            "deterministic": {"deterministic": True},
        }.get(what, {})
        changed = {
            "dtype": torch.Tensor.float,
            "direction": lambda x: x.clone().requires_grad_(),
            "shard length": lambda x: x[1:],
            "no tensors": lambda x: None,
        }.get(what)
        qkv = [changed(x) for x in qkv] if changed else qkv
    found = said(lambda: longca.attention(*qkv, mask, **{**about, **other}))
    again = max(errors(attend(causal, mine, **about), attend(causal, given), layout, rank))
    return found, again


def known_masks_in_another_order(size):
    """What each rank is told if the last rank reuses masks in another order and then makes one, and the next error."""
    mesh = mesh_of((("ring", size),))
    is_last, rank = mesh.get_rank() == size - 1, mesh.get_rank()
    about = {"strategy": "ring_p2p", "mesh": mesh, "placement": "contiguous", "kernel": "naive"}
    known = [masks.build(name, 40) for name in ("causal", "full")]
    given = inputs(40, (4, 2), "float64")
    layout = longca.layout(known[0], heads=(4, 2), head_dim=8, dtype="float64", **about)
    mine = [layout.shard(x, rank) for x in given]

    def call(mask):
        return longca.attention(*mine[:3], mask, **about)

    for mask in known:
        call(mask)
    turns = [*(known[(turn + is_last) % 2] for turn in range(2)), masks.build("causal_sliding_window", 40, window=3)]
    told = [said(partial(call, mask)) for mask in turns]
    again = max(errors(attend(known[0], mine, **about), attend(known[0], given), layout, rank))
    return told, again
