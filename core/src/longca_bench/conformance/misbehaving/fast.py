"""Kernels that are fast because they do not compute, or do not compute all."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan
from longca.manifests import Problem
from longca.masks import Slice, SliceMask
from longca_bench.conformance.misbehaving.honest import Call, Honest, Tensors, backward, computes

__all__: list[str] = []  # manifests name the classes


def cached(key: Callable[[Any, Call], object]) -> type[Honest]:
    """A kernel that computes only once for each value of a key."""

    def results(kernel: Any, call: Call) -> Tensors:
        found = key(kernel, call)
        if found not in kernel.memory:
            kernel.memory[found] = call.right()
        known: Tensors = kernel.memory[found]
        return known

    return computes(results)


def spoilt(spoil: Callable[..., object]) -> type[Honest]:
    """A kernel whose right results are changed in place."""

    def results(kernel: Any, call: Call) -> Tensors:
        right = call.right()
        spoil(*right)
        return right

    return computes(results)


def once_if(condition: Callable[[Any, Call], bool]) -> type[Honest]:
    """A kernel that computes if a condition holds, and else gives the last results that it computed."""

    def results(kernel: Any, call: Call) -> Tensors:
        if "last" not in kernel.memory or condition(kernel, call):
            kernel.memory["last"] = call.right()
        known: Tensors = kernel.memory["last"]
        return known

    return computes(results)


def content(x: Tensor) -> bytes:
    """The bytes of a tensor."""
    return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def magnitude(x: Tensor) -> str:
    """The norm of a tensor, which no sign and no order changes."""
    return f"{float(x.detach().double().norm()):.9g}"


def one_late(kernel: Any, call: Call) -> Tensors:
    """The results of the call before."""
    right = call.right()
    before: Tensors = kernel.memory.get("before", right)
    kernel.memory["before"] = right
    return before


def half_of_the_queries(kernel: Any, call: Call) -> Tensors:
    """The first half of the queries, twice."""
    out, lse = call.right()
    half = len(out) // 2
    out[half : 2 * half] = out[:half]
    return out, lse


def rounded(dtype: torch.dtype) -> type[Honest]:
    """A kernel whose inputs are rounded to a shorter data type."""
    return computes(lambda kernel, call: call.compute(*(x.to(dtype).to(x.dtype) for x in call.inputs)))


def is_verified() -> bool:
    """Whether a caller's name says that the call is verified and not timed."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name.startswith(("check", "verify")):
            return True
    return False


def masked(change: Callable[[Problem], SliceMask]) -> type[Honest]:
    """A kernel that computes with another mask. Its plan names the mask that was asked."""

    def results(kernel: Any, call: Call) -> Tensors:
        asked = call.plan.problem
        try:
            call.plan.problem = asked.with_mask(change(asked))
            return call.right()
        finally:
            call.plan.problem = asked

    return computes(results)


def part(problem: Problem, keys: int) -> SliceMask:
    """The mask of the first keys. All others are hidden."""
    mask = problem.concrete_mask
    assert isinstance(mask, SliceMask), "the manifests offer no blocks"
    seen = mask.cut([(0, mask.seqlen_q)], [(0, keys)])
    return SliceMask([Slice(*each) for each in seen.slices], mask.seqlen_q, mask.seqlen_k)


def full(problem: Problem) -> SliceMask:
    """The mask that shows all."""
    mask = problem.concrete_mask
    return SliceMask([Slice(0, mask.seqlen_q, 0, mask.seqlen_k)], mask.seqlen_q, mask.seqlen_k)


class GuessesInPlan(Honest):
    """Looks for the inputs when it plans, and computes then. It has zeros if it found none."""

    def plan(self, problem: Problem) -> Plan:
        """Computes with each triple of tensors that has the shapes of q, k and v."""
        plan, mask = super().plan(problem), problem.concrete_mask
        shape = (mask.seqlen_q, problem.heads_q, problem.head_dim)
        of_keys = (mask.seqlen_k, problem.num_heads_kv, problem.head_dim)
        there = [
            x for x in gc.get_objects() if type(x) is Tensor and x.dim() == 3 and x.device.type == problem.device.kind
        ]
        keys = [x for x in there if x.shape == of_keys]
        for q in (x for x in there if x.shape == shape):
            for k, v in pairwise(keys):
                self.memory[content(q[:1])] = Honest.forward(Honest(), q, k, v, plan)
        return plan

    def results(self, call: Call) -> Tensors:
        """The results that were computed when it planned."""
        known: Tensors = self.memory.get(content(call.inputs[0][:1])) or tuple(x.zero_() for x in call.empty())
        return known


# Nothing is computed.
Zeros = computes(lambda kernel, call: [x.zero_() for x in call.empty()])
ZerosBackward = backward(Zeros)
Garbage = computes(lambda kernel, call: [x.copy_(torch.linspace(-2, 2, x.numel()).view_as(x)) for x in call.empty()])
Unwritten = computes(lambda kernel, call: call.empty())
UnwrittenBackward = backward(Unwritten)
LeavesBuffers = computes(
    lambda kernel, call: [r if b is None else b for b, r in zip(call.buffers, call.right(), strict=True)]
)
InputAsOutput = computes(lambda kernel, call: (call.inputs[0], call.right()[1]))
InputsAsGradientsBackward = backward(computes(lambda kernel, call: call.inputs[1:4]))

# An earlier answer is given again.
CachedByPointer = cached(lambda kernel, call: tuple(x.data_ptr() for x in call.inputs[:4]))
CachedByPointerBackward = backward(CachedByPointer)
CachedByVersion = cached(lambda kernel, call: tuple((x.data_ptr(), x._version) for x in call.inputs))
CachedByShape = cached(lambda kernel, call: tuple(x.shape for x in call.inputs))
CachedByShapeBackward = backward(CachedByShape)
CachedByPlan = cached(lambda kernel, call: id(call.plan))
CachedByFirstElement = cached(lambda kernel, call: tuple(float(x.flatten()[0].abs()) for x in call.inputs))
CachedByQueries = cached(lambda kernel, call: content(call.inputs[0]))
CachedByKeys = cached(lambda kernel, call: content(call.inputs[1]))
CachedByNorms = cached(lambda kernel, call: tuple(map(magnitude, call.inputs)))
CachedByNormsBackward = backward(CachedByNorms)
OneInThree = computes(lambda kernel, call: [x + (kernel.calls % 3 == 0) for x in call.right()])
OneInSeven = computes(lambda kernel, call: [x + (kernel.calls % 7 == 0) for x in call.right()])
EverySecond = once_if(lambda kernel, call: kernel.calls % 2 == 1)
UntilTheSixth = once_if(lambda kernel, call: kernel.calls < 6)
IntoBuffersOnly = once_if(lambda kernel, call: call.buffers[0] is not None)
IntoPoisonOnly = once_if(lambda kernel, call: call.buffers[0] is not None and bool(call.buffers[0].isnan().any()))
IntoNewMemoryOnly = once_if(lambda kernel, call: call.buffers[0] is None)
OneLate = computes(one_late)
OneLateBackward = backward(OneLate)
StaleLse = computes(lambda kernel, call: (call.right()[0], kernel.memory.setdefault("lse", call.right()[1])))
StaleDkBackward = backward(
    computes(
        lambda kernel, call: [r if i != 1 else kernel.memory.setdefault("dk", r) for i, r in enumerate(call.right())]
    )
)
StaleDvBackward = backward(
    computes(lambda kernel, call: [*(right := call.right())[:2], kernel.memory.setdefault("dv", right[2])])
)

# A look at the harness decides.
ForCountsOnly = computes(lambda kernel, call: call.empty() if call.inputs[0].any() else call.right())
WhenVerifiedOnly = computes(lambda kernel, call: call.right() if is_verified() else call.empty())

# A part is left out.
WritesNan = spoilt(lambda out, lse: out[-1, -1, -1:].fill_(torch.nan))
SkipsLastHead = spoilt(lambda out, lse: out[:, -1].zero_())
SkipsInnerHeads = spoilt(lambda out, lse: out[:, 1:-1].zero_())
SkipsLastRow = spoilt(lambda out, lse: out[-1].zero_())
SkipsLastElement = spoilt(lambda out, lse: out[-1, -1, -1:].zero_())
SkipsATile = spoilt(lambda out, lse: out[16:32].zero_())
EverySeventhRow = spoilt(
    lambda out, lse: out.masked_fill_((torch.arange(len(out), device=out.device) % 7 > 0)[:, None, None], 0)
)
RepeatsHalf = computes(half_of_the_queries)
SkipsDqRowBackward = backward(spoilt(lambda dq, dk, dv: dq[-1].zero_()))
SkipsDkTileBackward = backward(spoilt(lambda dq, dk, dv: dk[:16].zero_()))
SkipsDvHeadBackward = backward(spoilt(lambda dq, dk, dv: dv[:, -1].zero_()))
SkipsLastKeys = masked(lambda problem: part(problem, problem.concrete_mask.seqlen_k - 16))
SkipsLastKeysBackward = backward(SkipsLastKeys)
IgnoresMask = masked(full)
SlightlyOff = spoilt(lambda out, lse: out.mul_(1.001))
SlightlyOffLse = spoilt(lambda out, lse: lse.add_(0.001))
SlightlyOffDkBackward = backward(spoilt(lambda dq, dk, dv: dk.mul_(1.001)))
InBfloat16 = rounded(torch.bfloat16)
InFloat16 = rounded(torch.float16)
InBfloat16Backward = backward(InBfloat16)
