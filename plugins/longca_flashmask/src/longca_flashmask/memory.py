"""What flashmask takes beside its tensors, in bytes, for its manifest. Torch-free.

Source: `plan.py`, `tables.py` and `launches.py` beside this file; held against results/h200 by a test.
"""

from __future__ import annotations

from longca import Problem
from longca.masks import Form
from longca.masks.blocks import BlockRuns
from longca.masks.intervals import IntervalPieces
from longca_flashmask.configs import choose

__all__ = ["plan_bytes", "workspace"]


def workspace(problem: Problem, form: Form) -> int:
    """In a backward, two numbers a query and head in float32."""
    if problem.direction == "forward":
        return 0
    configs = choose(problem.head_dim, problem.device.capability or (0, 0))
    multiple = max(8192 // problem.head_dim, configs.dkdv.block_m, configs.dq.block_m)
    return 2 * 4 * problem.heads_q * -(-problem.concrete_mask.seqlen_q // multiple) * multiple


def plan_bytes(problem: Problem, form: Form) -> int:
    """The tokens' intervals, and the runs of tiles of each kernel."""
    mask, configs = problem.concrete_mask, choose(problem.head_dim, problem.device.capability or (0, 0))
    size, shapes = _intervals(mask.head(0).row_pieces), {configs.forward.shape}
    if problem.direction == "backward":
        size += _intervals(mask.head(0).column_pieces) + _tiles(mask.blocks(*configs.dkdv.shape).by_key)
        shapes.add(configs.dq.shape)
    return size + sum(_tiles(mask.blocks(*shape).by_query) for shape in shapes)


def _intervals(pieces: IntervalPieces) -> int:
    """Starts and stops of 1, 2, 4 or 8 intervals a token."""
    count = 1 << (max(1, pieces.max_intervals) - 1).bit_length()
    return 2 * 4 * count * int(pieces.rows[-1])


def _tiles(runs: BlockRuns) -> int:
    return 16 * runs.num_rows + 8 * (len(runs.full) + len(runs.partial) + 1)
