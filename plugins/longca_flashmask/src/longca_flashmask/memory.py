"""Bytes that flashmask takes beside its tensors, for its manifest. Torch-free.

Source: `plan.py` and `tables.py` beside this file. A test compares these bytes with the records in results/h200.
"""

from __future__ import annotations

from longca import Problem
from longca.masks import Form
from longca.masks.blocks import BlockRuns
from longca.masks.intervals import IntervalPieces
from longca_flashmask.configs import choose
from longca_triton.memory import prepared_bytes

__all__ = ["plan_bytes", "workspace"]


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of exponents and deltas, in a backward."""
    return prepared_bytes(problem, choose(problem.head_dim, problem.device.capability))


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of the tokens' intervals, and of each kernel's runs of tiles."""
    mask, configs = problem.concrete_mask, choose(problem.head_dim, problem.device.capability)
    size, shapes = _intervals(mask.head(0).row_pieces), {configs.forward.shape}
    if problem.direction == "backward":
        size += _intervals(mask.head(0).column_pieces) + _tiles(mask.blocks(*configs.dkdv.shape).by_key)
        shapes.add(configs.dq.shape)
    return size + sum(_tiles(mask.blocks(*shape).by_query) for shape in shapes)


def _intervals(pieces: IntervalPieces) -> int:
    """Bytes of the starts and stops of 1, 2, 4 or 8 intervals a token."""
    count = 1 << (max(1, pieces.max_intervals) - 1).bit_length()
    return 2 * 4 * count * int(pieces.rows[-1])


def _tiles(runs: BlockRuns) -> int:
    return 16 * runs.num_rows + 8 * (len(runs.full) + len(runs.partial) + 1)
