"""Kernels that are wrong or deadly, each in one way; copied into a distribution of its own by test_faults."""

import ctypes
import os
import subprocess
import time
from typing import ClassVar

import torch

from longca.masks import Slice, SliceMask
from longca_builtin.naive import Naive


class Segfault(Naive):
    def forward(self, *arguments, **buffers):
        ctypes.string_at(0)


class Exit(Naive):
    def forward(self, *arguments, **buffers):
        os._exit(0)


class Hang(Naive):
    def plan(self, problem):
        while True:
            time.sleep(0.1)


class Deadlock(Naive):
    """Waits for a child of its own that never ends."""

    def forward(self, *arguments, **buffers):
        subprocess.run(["sleep", "86399"], check=True)


class Raises(Naive):
    def forward(self, *arguments, **buffers):
        raise RuntimeError("no kernel image is available")


class Zeros(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        out, lse = super().forward(q, k, v, plan, out=out, lse=lse)
        return out.zero_(), lse


class WritesNaN(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        out, lse = super().forward(q, k, v, plan, out=out, lse=lse)
        out[3, 0, 0] = torch.nan
        return out, lse


class Unwritten(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result, sums = super().forward(q, k, v, plan)
        out[:-1] = result[:-1]
        return out, lse.copy_(sums)


class SkipsLastTile(Naive):
    def plan(self, problem):
        n = problem.mask.seqlen_k
        seen = problem.mask.cut([(0, problem.mask.seqlen_q)], [(0, n - 16)])
        shown = [Slice(*s) for s in seen.slices]
        return super().plan(problem.with_mask(SliceMask(shown, problem.mask.seqlen_q, n)))


class WrongDk(Naive):
    def backward(self, *arguments, **buffers):
        dq, dk, dv = super().backward(*arguments, **buffers)
        dk[7, 1] *= 1.01
        return dq, dk, dv


class WrongShape(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        out, lse = super().forward(q, k, v, plan, out=out, lse=lse)
        return out.flatten(1), lse


class WrongDtype(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        out, lse = super().forward(q, k, v, plan, out=out, lse=lse)
        return out.double(), lse


class Alias(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        result, sums = super().forward(q, k, v, plan, lse=lse)
        return q.copy_(result), sums


class ChangesInputs(Naive):
    def forward(self, q, k, v, plan, *, out=None, lse=None):
        results = super().forward(q, k, v, plan, out=out, lse=lse)
        k.mul_(2)
        return results


class OneInMany(Naive):
    """Right, but for every seventh call."""

    calls = 0

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        out, lse = super().forward(q, k, v, plan, out=out, lse=lse)
        OneInMany.calls += 1
        if OneInMany.calls % 7 == 0:
            out[0] += 1
        return out, lse


class TakesAllMemory(Naive):
    def forward(self, *arguments, **buffers):
        taken = []
        while True:
            taken.append(torch.empty(2**28))


class CachesByPointer(Naive):
    cache: ClassVar = {}

    def forward(self, q, k, v, plan, *, out=None, lse=None):
        key = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if key not in self.cache:
            self.cache[key] = super().forward(q, k, v, plan)
        result, sums = self.cache[key]
        return (result if out is None else out.copy_(result)), (sums if lse is None else lse.copy_(sums))


class Slow(Naive):
    def forward(self, *arguments, **buffers):
        time.sleep(0.3)
        return super().forward(*arguments, **buffers)


class TakesAllGpuMemory(Naive):
    def forward(self, *arguments, **buffers):
        taken = []
        while True:
            taken.append(torch.empty(2**30, device="cuda"))


class IllegalAccess(Naive):
    def forward(self, q, k, v, plan, **buffers):
        import triton
        import triton.language as tl

        @triton.jit
        def store_far_away(pointer):
            tl.store(pointer + 2**44, 1.0)

        store_far_away[(1,)](q)
        torch.cuda.synchronize()
        return super().forward(q, k, v, plan, **buffers)
