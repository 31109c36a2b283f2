"""The nominal cost of a layout with a kernel, for the choice between placements without evidence.

A rank's step costs the area of the 128 × 128 tiles that its mask touches (area over tile efficiency). The unit is a
score: one query, one key, one query head. The form that the offer takes adjusts this cost. Keys and
values of other ranks arrive during the step before, so that a step takes the longer of the two. Steps are synchronous,
because ranks wait for one another. Each step takes as long as on the slowest rank, and the sum is the prediction.

The factors below are of H200s with heads of 128 in bfloat16 (docs: Dense kernels, NCCL within a host). They compare one
placement with another, and an error in them affects all placements alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from longca.manifests.kernel import KernelManifest
from longca.manifests.offers import Direction
from longca.manifests.problem import Problem
from longca.manifests.resolve import resolve_steps
from longca.manifests.step_cuts import step_problems
from longca.manifests.strategy import Layout, Ranges, Step
from longca.manifests.verdict import Verdict
from longca.masks import Form
from longca.masks.cutting import renumber

__all__ = ["nominal_cost"]

#: A kernel's speed with intervals, as a share of its speed on the masks that it has built in.
_BY_INTERVALS = 0.8

#: Scores that a kernel computes while one query's partial output is written, read and merged: 1.3 KB at 4 TB/s.
_MERGE = 400

#: Scores that it computes while one key and its value arrive, for one KV head: 4 · head_dim bytes at 330 GB/s.
_ARRIVAL = 1800


def nominal_cost(manifests: Sequence[KernelManifest], problem: Problem, layout: Layout) -> float:
    """The nominal cost of a layout's forward, which a pair's first kernel computes, in scores of one rank.

    It is the sum over steps of the largest cost of any rank.
    """
    if len(manifests) > 1:
        problem = problem.in_direction(Direction.FORWARD)
    ranks = (
        [
            max(_compute(verdict, part), _ARRIVAL * _arriving(step, shard))
            for verdict, part, step in zip(resolve_steps(manifests[0], parts), parts, steps, strict=True)
        ]
        for steps, parts, shard in zip(layout.steps, step_problems(problem, layout), layout.shards, strict=True)
    )
    return sum(max(together) for together in zip_longest(*ranks, fillvalue=0.0))


def _compute(verdict: Verdict, part: Problem | None) -> float:
    """The cost of a step on its rank, by the offer that takes it."""
    if part is None:
        return 0.0
    assert verdict.offer is not None, "the kernel takes every step"
    form = verdict.offer.form
    mask, rows = part.concrete_mask, part.concrete_mask.seqlen_q * part.heads_q
    merges = _MERGE * rows * part.composed
    if form is Form.DENSE:
        return merges + rows * mask.seqlen_k
    tiles = part.area / mask.tile_efficiency()
    if form in (Form.ROW_INTERVALS, Form.COLUMN_INTERVALS):
        return merges + tiles / _BY_INTERVALS
    if form is Form.LAYERS:
        return merges + tiles + _MERGE * rows * (mask.count(Form.LAYERS) - 1)
    return merges + tiles


def _arriving(step: Step, shard: Ranges) -> int:
    """Keys of a step that the rank does not hold itself, times the KV heads."""
    keys, held = (np.array(ranges, np.int64).reshape(-1, 2) for ranges in (step.k_ranges, shard))
    arriving = int(np.diff(keys).sum())
    if len(held):
        arriving -= int(np.diff(renumber(keys, held)).sum())
    return arriving * (step.heads_kv[1] - step.heads_kv[0])
