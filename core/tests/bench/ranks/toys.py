"""A strategy and kernels of a distribution that tests make: kernels do wrong on rank 1, each in one way.

They do it in cases of forwards alone, so that the case after each, of a backward, shows that nothing was left of it.
"""

import os
import subprocess
import time
from itertools import pairwise

import torch
import torch.distributed as dist

from longca.errors import UnsupportedError
from longca.manifests import Layout, Step
from longca.manifests.resolve import step_problems
from longca_builtin.naive import Naive


def layout(problem, axis_sizes, placement):
    """Each rank its own queries, and all keys; `evenly` or a rank `lazily` left with next to nothing."""
    ranks, tokens = axis_sizes["toy"], problem.concrete_mask.seqlen_q
    if placement == "never":
        raise UnsupportedError("nobody is ever placed so.")
    first = tokens // ranks if placement == "evenly" else 1
    bounds = [0, *(first + (tokens - first) * i // max(1, ranks - 1) for i in range(ranks))]
    bounds[-1] = tokens
    shards = tuple(((start, stop),) for start, stop in pairwise(bounds))
    heads = (0, problem.heads_q), (0, problem.heads_kv)
    return Layout(tuple((Step(shard, ((0, tokens),), *heads),) for shard in shards), shards)


class Plan:
    def __init__(self, layout, rank, kernel, step):
        self.layout, self.rank, self.kernel, self.step = layout, rank, kernel, step
        self.metadata_bytes = step.metadata_bytes


class Toy:
    """Broadcasts every rank's keys and values, and sums their gradients."""

    def __init__(self, mesh):
        self.group = mesh.get_group()

    def plan(self, problem, layout, kernel):
        rank = dist.get_rank(self.group)
        (step,) = step_problems(problem, layout)[rank]
        return Plan(layout, rank, kernel, kernel.plan(step))

    def everyones(self, x, plan):
        parts = [x.new_zeros(plan.layout.shard_size(r), *x.shape[1:]) for r in range(plan.layout.world_size)]
        parts[plan.rank].copy_(x)
        for rank, part in enumerate(parts):
            dist.broadcast(part, group=self.group, group_src=rank)
        return torch.cat(parts)

    def forward(self, q, k, v, plan, *, kept=None):
        return plan.kernel.forward(q, self.everyones(k, plan), self.everyones(v, plan), plan.step)

    def backward(self, dout, q, k, v, out, lse, plan, *, kept=None):
        keys, values = self.everyones(k, plan), self.everyones(v, plan)
        dq, *grads = plan.kernel.backward(dout, q, keys, values, out, lse, plan.step)
        for grad in grads:
            dist.all_reduce(grad, group=self.group)
        return dq, *(plan.layout.shard(grad, plan.rank) for grad in grads)


def is_due(plan):
    return os.environ["RANK"] == "1" and plan.problem.direction == "forward"


class Raises(Naive):
    def forward(self, q, k, v, plan, **buffers):
        if is_due(plan):
            raise RuntimeError("no kernel image is available")
        return super().forward(q, k, v, plan, **buffers)


class Exits(Naive):
    def forward(self, q, k, v, plan, **buffers):
        if is_due(plan):
            os._exit(7)
        return super().forward(q, k, v, plan, **buffers)


class Hangs(Naive):
    """Waits for a child of its own that never ends."""

    def forward(self, q, k, v, plan, **buffers):
        if is_due(plan):
            subprocess.run(["sleep", "86398"], check=True)
        return super().forward(q, k, v, plan, **buffers)


class HangsPlanning(Naive):
    def plan(self, problem):
        while os.environ["RANK"] == "1" and problem.direction == "forward":
            time.sleep(0.1)
        return super().plan(problem)


class TakesAllMemory(Naive):
    def forward(self, q, k, v, plan, **buffers):
        taken = []
        while is_due(plan):
            taken.append(torch.empty(2**28))
        return super().forward(q, k, v, plan, **buffers)


class Rough(Naive):
    """Its log-sum-exp is as far off as a sum of rounded weights may be; those of q = 0 are not rounded."""

    error = 0.9 * torch.finfo(torch.bfloat16).eps / 2

    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        return out, lse.add_(self.error) if q.any() else lse

    def backward(self, dout, q, k, v, out, lse, plan, **buffers):
        return super().backward(dout, q, k, v, out, lse - self.error, plan, **buffers)


class Wrong(Naive):
    def forward(self, q, k, v, plan, **buffers):
        out, lse = super().forward(q, k, v, plan, **buffers)
        if is_due(plan):
            out[-1, 2] += 1
        return out, lse
