"""A strategy and kernels of a distribution that tests make: kernels do wrong on rank 1, each in one way.

They do it in cases of forwards alone, so that the case after each, of a backward, shows that nothing was left of it.
"""

import os
import pickle
import subprocess
import time

import torch
import torch.distributed as dist

from longca.manifests.resolve import step_problems
from longca_builtin.naive import Naive


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
        # dk and dv may be parts of one buffer.
        shards = torch.stack([plan.layout.shard(grad, plan.rank) for grad in grads])
        return dq, *shards.unbind()


def is_due(plan):
    return os.environ["RANK"] == "1" and plan.problem.direction == os.environ.get("TOYS_DUE", "forward")


class PatchesTime(Toy):
    """Is slow, and makes the clock of its process a hundred times slower."""

    def forward(self, *arguments, **buffers):
        if not hasattr(time, "true"):
            time.true = time.perf_counter
            time.perf_counter = lambda: time.true() / 100
        time.sleep(0.2)
        return super().forward(*arguments, **buffers)


class ReturnsList(Toy):
    """Returns a list on one rank."""

    def forward(self, *arguments, **buffers):
        results = super().forward(*arguments, **buffers)
        return list(results) if os.environ["RANK"] == "1" else results


class WrongNowAndThen(Toy):
    """Is off by 1 in one element of every fifth call on one rank."""

    calls = 0

    def forward(self, *arguments, **buffers):
        out, lse = super().forward(*arguments, **buffers)
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls % 5 == 0:
            out[7, 2, 3] += 1
        return out, lse


class RepeatsItself(Toy):
    """Gives its third answer for ever after."""

    calls = 0

    def forward(self, *arguments, **buffers):
        self.calls += 1
        if self.calls <= 3:
            self.last = super().forward(*arguments, **buffers)
        return self.last


class ChangesState(Toy):
    """Changes the default dtype in a forward on one rank."""

    def forward(self, *arguments, **buffers):
        if os.environ["RANK"] == "1":
            torch.set_default_dtype(torch.float64)
        return super().forward(*arguments, **buffers)


class ChangesInputsLater(Toy):
    """Doubles v in timed calls on one rank."""

    calls = 0

    def forward(self, q, k, v, plan, *, kept=None):
        results = super().forward(q, k, v, plan, kept=kept)
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls > Later.first:
            v.mul_(2)
        return results


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


class Creates:
    """Creates a file where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (os.path.join(os.environ["STARTED_BY_TEST"], "unpickled"),)


class WritesPickles(Naive):
    """Answers in place of every rank, in the store of the job."""

    def forward(self, q, k, v, plan, **buffers):
        if is_due(plan):
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), wait_for_workers=False)
            for rank in range(2):
                for name in ("answer/0", "answer/1", "ready/1"):
                    store.set(f"longca/0/{name}/{rank}", pickle.dumps(Creates()))
            store.set("longca/0/assignment/1", pickle.dumps(Creates()))
        return super().forward(q, k, v, plan, **buffers)


class Hangs(Naive):
    """Waits for a child of its own that never ends."""

    def forward(self, q, k, v, plan, **buffers):
        if is_due(plan):
            subprocess.run(["sleep", "86398"], check=True)
        return super().forward(q, k, v, plan, **buffers)


class Later(Naive):
    """Right in its first calls by the strategy, which have half of the queries. The calls after them are timed."""

    first = 4

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, q, k, v, plan, **buffers):
        self.calls += is_due(plan) and len(q) < len(k)
        out, lse = super().forward(q, k, v, plan, **buffers)
        if is_due(plan) and self.calls > self.first and len(q) < len(k):
            self.spoil(out)
        return out, lse


class WrongLater(Later):
    def spoil(self, out):
        out[-1, 2] += 1


class HangsOnDevice(Later):
    """Returns at once, while its device computes for days."""

    def spoil(self, out):
        torch.cuda._sleep(2**50)


class LateOnDevice(Later):
    """Writes its results once more, on a stream that nobody waits for."""

    def spoil(self, out):
        right = out.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**8)
            out.copy_(right)


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
