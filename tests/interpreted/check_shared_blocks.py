"""bsa computes every step of block-sparse masks under each strategy, and the steps together give the whole.

pytest does not collect this file by itself: `test_shared_blocks.py` runs it in a process that interprets.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from longca import registry
from longca.manifests.resolve import step_problems
from longca.masks import BlockSparseMask
from longca.parallel.merge import merge
from longca_builtin.naive import Naive
from longca_triton.checking import both_ways, compare, cpu_problem, draw_tensors
from longca_triton.config import Config, Configs
from longca_vsa.bsa.kernel import BlockSparseAttention

KERNEL = BlockSparseAttention(Configs(Config(32, 32, 4, 2), Config(32, 32, 4, 2), Config(32, 32, 4, 2)))
MESHES = {
    "ulysses": {"ulysses": 2},
    "ring_p2p": {"ring": 4},
    "ring_all_gather": {"ring": 2},
    "usp": {"ring": 2, "ulysses": 2},
    "loongtrain": {"outer": 2, "inner": 1, "heads": 2},
}
UNIFORM = np.r_[0:110:16, 110]
UNEQUAL = np.array([0, 3, 40, 41, 90, 97, 110])


def rows(ranges):
    return torch.cat([torch.arange(0), *(torch.arange(*pair) for pair in ranges)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("heads", "placement", "bounds"),
    [
        pytest.param(1, "zigzag", UNIFORM, marks=pytest.mark.exhaustive),
        (2, "balanced", UNEQUAL),
        (4, "contiguous", UNIFORM),
    ],
    ids=["shared", "by KV head", "by query head"],
)
@pytest.mark.parametrize("strategy", MESHES)
def test_the_steps_of_a_strategy_give_the_whole(strategy, heads, placement, bounds):
    kept = np.random.default_rng(heads).random((heads, len(bounds) - 1, len(bounds) - 1)) < 0.4
    problem = cpu_problem(BlockSparseMask(kept, bounds, bounds), 4, 2)
    placement = "contiguous" if strategy == "ulysses" else placement
    layout = registry().layout(strategy, problem, MESHES[strategy], placement)
    q, k, v, dout = draw_tensors(problem)
    out, lse = torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[1::-1], -torch.inf, dtype=torch.float64)
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64) for x in (q, k, v))
    for steps, parts in zip(layout.steps, step_problems(problem, layout), strict=True):
        shown = [(step, KERNEL.plan(part)) for step, part in zip(steps, parts, strict=True) if part is not None]
        mine, of_q = rows(steps[0].q_ranges), slice(*steps[0].heads_q)
        merged = out[mine, of_q].float(), lse[of_q, mine].float()
        for step, plan in shown:
            keys, of_k = rows(step.k_ranges), slice(*step.heads_kv)
            merged = merge(merged, KERNEL.forward(q[mine, of_q], k[keys, of_k], v[keys, of_k], plan))
        out[mine, of_q], lse[of_q, mine] = (x.double() for x in merged)
        for step, plan in shown:
            keys, of_k = rows(step.k_ranges), slice(*step.heads_kv)
            given = dout[mine, of_q], q[mine, of_q], k[keys, of_k], v[keys, of_k], merged[0].to(q.dtype), merged[1]
            grads = KERNEL.backward(*given, plan)
            for total, at, of, grad in zip((dq, dk, dv), (mine, keys, keys), (of_q, of_k, of_k), grads, strict=True):
                total[at, of] += grad.double()
    expected = both_ways(Naive(), problem, q.double(), k.double(), v.double(), dout.double())
    compare((out, lse, dq, dk, dv), expected)
