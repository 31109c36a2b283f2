"""The jobs of blocks that ranks choose together."""

import numpy as np
from jobs import attend, errors, inputs, mesh_of, rank_of, said

import longca
from longca import masks
from longca.manifests import Device


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
