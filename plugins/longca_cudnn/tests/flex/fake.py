"""A fake of cudnn.flex_attention 1.32 that computes on the CPU. It refuses what the library refuses."""

from __future__ import annotations

import logging
import math

import torch

from ..attended import backward, forward

HEAD_DIMS = (*range(8, 129, 8), 256)
CPU_ALIGNMENT = 64  # bytes. Memory of GPUs begins at multiples of 512


class MaskPlan:
    """What create_mask_plan returns: the dense matrix [1 or Hq, Tq, Tk] in place of tiles and bits."""

    def __init__(self, seen, has_backward):
        self.seen, self.has_backward = seen, has_backward
        lists = torch.zeros(3, dtype=torch.int32)
        self._packed_plan = (lists, None, 7, (torch.zeros(5, dtype=torch.int64), lists))
        self._deterministic_packed_plan = None


def create_mask_plan(mask_func, q, k, v, *, build_backward):
    print("Compiled mask-plan classify in 0.1s")
    check_operands(q, k, v)
    heads, count, queries = mask_func.shape
    assert mask_func.dtype == torch.int32
    assert mask_func.is_contiguous()
    assert heads in (1, q.shape[2])
    assert count % 2 == 1
    assert queries == q.shape[1]
    ends = torch.nn.functional.pad(mask_func, (0, 0, 1, 0))
    assert (ends.diff(dim=1) >= 0).all()
    assert (ends <= k.shape[1]).all()
    keys = torch.arange(k.shape[1])
    seen = torch.zeros(heads, queries, len(keys), dtype=torch.bool)
    for start, stop in zip(ends[:, 0::2].unbind(1), ends[:, 1::2].unbind(1), strict=True):
        seen |= (keys >= start[..., None]) & (keys < stop[..., None])
    assert seen.any()
    return MaskPlan(seen, build_backward)


def check_operands(q, k, v):
    assert q.dtype == k.dtype == v.dtype
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert q.dim() == k.dim() == v.dim() == 4
    assert k.shape == v.shape
    assert q.shape[2] % k.shape[2] == 0
    assert q.shape[3] == k.shape[3]
    assert q.shape[3] in HEAD_DIMS
    assert q.stride(3) == k.stride(3) == v.stride(3) == 1


class _Call:
    bytes_needed = 0

    def __init__(self, tensors, mask_plan):
        logging.getLogger(type(self).__name__).warning("%s is an experimental API", type(self).__name__)
        self.descriptions = [_described(x) for x in tensors]
        self.workspace_size, self.tensors, self.mask_plan = 0, tensors, mask_plan

    def check_support(self):
        self.check(self.tensors, self.mask_plan)

    def compile(self):
        print("Compiled FlexAttention kernel in 0.1s")
        self.workspace_size, self.tensors = self.bytes_needed, None

    def ready(self, tensors, mask_plan, workspace):
        assert self.tensors is None, "not compiled"
        assert [_described(x) for x in tensors] == self.descriptions
        assert workspace.dtype == torch.uint8
        assert workspace.numel() >= self.workspace_size
        self.check(tensors, mask_plan)

    def aligned(self, tensors, alignment):
        for x in tensors:
            assert x.data_ptr() % min(alignment, CPU_ALIGNMENT) == 0
            assert x.stride(-1) == 1
            assert all(stride * x.element_size() % alignment == 0 for stride in x.stride()[:-1])


def _described(x):
    return x.shape, x.stride(), x.dtype


class FlexAttentionFwd(_Call):
    bytes_needed = 128

    def __init__(self, q, k, v, o, mask_plan, lse):
        super().__init__((q, k, v, o, lse), mask_plan)

    def check(self, tensors, mask_plan):
        q, k, v, o, lse = tensors
        check_operands(q, k, v)
        self.aligned((q, k, v, o), 16)
        assert mask_plan.seen.shape[1:] == (q.shape[1], k.shape[1])
        assert (o.shape, o.dtype) == (q.shape, q.dtype)
        assert (lse.shape, lse.dtype) == ((1, q.shape[2], q.shape[1]), torch.float32)
        assert lse.stride(-1) == 1

    def execute(self, q, k, v, o, mask_plan, lse, *, workspace, softmax_scale):
        self.ready((q, k, v, o, lse), mask_plan, workspace)
        out, sums = forward(q, k, v, mask_plan.seen, softmax_scale)
        o.copy_(out)
        lse.copy_(sums.masked_fill(sums == -torch.inf, math.nan))


class FlexAttentionBwd(_Call):
    bytes_needed = 4096

    def __init__(self, *tensors, deterministic):
        assert type(deterministic) is bool
        super().__init__(tensors[:-1], tensors[-1])

    def check(self, tensors, mask_plan):
        q, k, v, o, do, lse, dq, dk, dv = tensors
        assert mask_plan.has_backward
        check_operands(q, k, v)
        self.aligned((q, k, v, o, do, dq, dk, dv), 128 if q.shape[3] == 256 else 16)
        assert (lse.shape, lse.dtype) == ((1, q.shape[2], q.shape[1]), torch.float32)
        assert lse.stride(-1) == 1
        for x, like in ((o, q), (do, q), (dq, q), (dk, k), (dv, v)):
            assert (x.shape, x.dtype) == (like.shape, like.dtype)

    def execute(self, q, k, v, o, do, lse, dq, dk, dv, mask_plan, *, workspace, softmax_scale):
        self.ready((q, k, v, o, do, lse, dq, dk, dv), mask_plan, workspace)
        for grad, result in zip(
            (dq, dk, dv), backward(do, q, k, v, o, lse, mask_plan.seen, softmax_scale), strict=True
        ):
            grad.copy_(result)
