"""The jobs of blocks that ranks choose together."""

import numpy as np
from jobs import attend, errors, inputs, mesh_of, rank_of

import longca
from longca import masks


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
