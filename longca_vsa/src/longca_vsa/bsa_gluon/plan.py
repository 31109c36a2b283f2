"""The plan of bsa_gluon: a mask as the kernel takes it, on the device.

The tables are those of `bsa`: each block of queries has a list of the key blocks that it sees, and the query heads that
share a mask and a KV head are rows of one tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from longca import Problem
from longca.kernels.base import Plan, torch_device
from longca.kernels.sizes import block_sparse
from longca.masks import Form
from longca_vsa.bsa.configs import packed_heads
from longca_vsa.bsa.lists import Kept, Lists, make_lists
from longca_vsa.bsa.tables import Tiles, make_tiles
from longca_vsa.bsa_gluon.shape import ROWS, block_size

__all__ = ["GluonPlan", "make_plan"]


@dataclass(eq=False)
class GluonPlan(Plan):
    """A plan of bsa_gluon.

    Attributes:
        packed: Query heads that are rows of one tile.
        lists: The key blocks of each query block.
        tiles: Tiles of query rows, and the order of the tasks.
    """

    packed: int
    lists: Lists
    tiles: Tiles


def make_plan(problem: Problem) -> GluonPlan:
    """Puts the lists of key blocks and the tiles on the problem's device."""
    mask, packed = block_sparse(problem), packed_heads(problem)
    size, kept = block_size(mask), Kept.of(mask, torch_device(problem.device))
    # Steps of several blocks have lists of blocks, and not of runs. The last block counts as a whole one.
    (lists,) = make_lists(kept, size * np.arange(max(1, kept.num_keys) + 1), {2 * size}).values()
    tiles = make_tiles(mask.q_bounds, packed, ROWS, lists.steps[2 * size], problem.heads_q // packed)
    return GluonPlan(problem, Form.BLOCK_SPARSE, "triton", packed, lists, tiles)
