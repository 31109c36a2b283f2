"""The plan's tables, read on the CPU as the kernel reads them."""

from __future__ import annotations

import numpy as np
import pytest

from longca import Device, Problem, masks
from longca.masks import BlockSparseMask
from longca_vsa.bsa_gluon.kernel import BlockSparseGluon
from longca_vsa.bsa_gluon.shape import PIECE, ROWS


def problem(mask, heads):
    return Problem(mask=mask, heads_q=heads[0], heads_kv=heads[1], device=Device("cpu"))


def steps_of(plan, program):
    """The first head, the first row, and the keys of each step of a program, without those that the kernel hides."""
    head, tile = divmod(int(plan.tiles.order[program]), len(plan.tiles.table))
    token, _, row, block = plan.tiles.table[tile].tolist()
    head *= plan.packed
    lists, mask = plan.lists, plan.problem.concrete_mask
    place = head // (plan.problem.heads_q // mask.heads) * lists.num_rows + block
    first, stop = lists.offsets[place].item(), lists.offsets[place + 1].item()
    blocks = lists.entries[first:stop].tolist()
    found, whole = [], lists.unit // PIECE
    pieces = [number * whole + piece for number in blocks for piece in range(whole)]
    pieces = [piece * PIECE for piece in pieces if piece * PIECE < mask.seqlen_k]
    pieces.reverse()
    pieces = [None] * (len(pieces) % 2) + pieces  # the first step may have one piece
    for step in range(0, len(pieces), 2):
        both = [piece for piece in pieces[step : step + 2] if piece is not None]
        found.append([key for piece in both for key in range(piece, min(piece + PIECE, mask.seqlen_k))])
    return head, token * plan.packed + row, found


MASKS = [
    (masks.build("uniform_block_sparse", 1024, block=64, kept=0.3, heads=2), (16, 2)),
    (masks.build("uniform_block_sparse", 1000, block=64, kept=0.3, heads=1), (8, 2)),
    (masks.build("uniform_block_sparse", 1000, block=128, kept=0.4, heads=4), (4, 2)),
    (masks.build("uniform_block_sparse", 600, block=256, kept=0.6, heads=2), (4, 2)),
    (BlockSparseMask(np.ones((1, 4, 1), bool), [0, 64, 128, 192, 256], [0, 40]), (8, 2)),
    (BlockSparseMask(np.zeros((1, 3, 3), bool), *[range(0, 193, 64)] * 2), (8, 2)),
    (masks.build("uniform_block_sparse", 1024, block=64, kept=0.3, heads=1).cut([(0, 256)], []), (8, 2)),
    (masks.build("uniform_block_sparse", 1024, block=64, kept=0.3, heads=1).cut([], [(0, 256)]), (8, 2)),
]


@pytest.mark.parametrize(("mask", "heads"), MASKS)
def test_every_visible_pair_belongs_to_one_step(mask, heads):
    made = BlockSparseGluon().plan(problem(mask, heads))
    seen = np.zeros((heads[0], mask.seqlen_q, mask.seqlen_k), int)
    for program in range(made.tiles.programs):
        head, row, steps = steps_of(made, program)
        for at in range(row, row + ROWS):
            token, own = divmod(at, made.packed)
            if token < mask.seqlen_q:
                for keys in steps:
                    seen[head + own, token, keys] += 1
    wanted = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k).repeat(heads[0] // mask.heads, axis=0)
    assert (seen == wanted).all()
