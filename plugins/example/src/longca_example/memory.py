"""Bytes that online allocates besides its tensors, for its manifest. Torch-free.

Source: `online.py` beside this file.
"""

from __future__ import annotations

from longca import Problem
from longca.kernels.sizes import Tensors
from longca.masks import Form

__all__ = ["plan_bytes", "workspace"]

_BLOCK = 128  # queries and keys of a tile


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of a few tiles of scores and blocks of queries. A backward adds the sums of dk and dv."""
    tensors = Tensors.of(problem)
    wide = max(4, tensors.element)
    tiles = wide * problem.heads_q * _BLOCK * (3 * _BLOCK + 2 * sum(problem.dims))
    return tiles + (tensors.wide(tensors.k + tensors.v) if problem.direction == "backward" else 0)


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of the first and last key of each interval of each query."""
    mask = problem.concrete_mask
    return 2 * 4 * mask.count(Form.ROW_INTERVALS) * mask.seqlen_q
