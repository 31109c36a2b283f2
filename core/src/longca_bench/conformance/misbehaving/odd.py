"""Kernels whose results have the right values in the wrong kind of object, and kernels with odd plans.

Each writes right results into the buffers that it gets, so that the returned object alone is odd.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace, new_class
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan
from longca.manifests import Direction, Problem
from longca.masks import Form
from longca_bench.conformance.misbehaving.fast import part
from longca_bench.conformance.misbehaving.honest import Call, Honest, answers, backward

__all__: list[str] = []  # manifests name the classes


def returns(change: Callable[..., object]) -> type[Honest]:
    """A kernel that returns a function of the right out and lse, which are in the buffers too."""
    return answers(lambda kernel, call: change(*call.fill(call.right())))


def plans(change: Callable[[Plan], object]) -> type[Honest]:
    """A kernel whose plan is a function of the right plan. It computes by the right plan."""

    def plan(kernel: Any, problem: Problem) -> object:
        kernel.memory["plan"] = Honest.plan(kernel, problem)
        return change(Honest.plan(kernel, problem))

    return new_class("Misbehaving", (Honest,), exec_body=lambda body: body.update(plan=plan))


class ShrinksProblem(Honest):
    """Hides half of the keys in the very problem that it is given, and computes that."""

    def plan(self, problem: Problem) -> Plan:
        """Plans for the smaller mask."""
        object.__setattr__(problem, "mask", part(problem, problem.concrete_mask.seqlen_k // 2))
        return super().plan(problem)


def with_problem(plan: Plan, **fields: Any) -> Plan:
    """A plan that says that it is for another problem."""
    return Plan(replace(plan.problem, **fields), plan.form, plan.backend)


def with_backend(backend: object) -> type[Honest]:
    """A kernel whose plan has a backend."""

    return plans(lambda plan: Plan(plan.problem, plan.form, backend))  # type: ignore[arg-type]


def with_bytes(number: object) -> type[Honest]:
    """A kernel whose plan says that its tensors take so many bytes."""
    kind = type("OddPlan", (Plan,), {"metadata_bytes": number})
    return plans(lambda plan: kind(plan.problem, plan.form, plan.backend))


def with_form(form: object) -> type[Honest]:
    """A kernel whose plan names a form."""
    return plans(lambda plan: Plan(plan.problem, form, plan.backend))  # type: ignore[arg-type]


def raise_lookup(plan: object) -> int:
    """Raises, as a property."""
    raise LookupError("this plan does not know its size")


class Lazy(torch.Tensor):
    """A tensor that computes when it is read for the first time."""

    compute: Callable[[], Tensor]

    @staticmethod
    def of(like: Tensor, compute: Callable[[], Tensor]) -> Lazy:
        """A lazy tensor with the shape and the dtype of another tensor."""
        lazy: Lazy = torch.Tensor._make_wrapper_subclass(Lazy, like.shape, dtype=like.dtype, device=like.device)
        lazy.compute = compute
        return lazy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Computes, and calls the operator with the result."""
        plain = [x.compute() if isinstance(x, Lazy) else x for x in args]
        return func(*plain, **(kwargs or {}))


class Liar(torch.Tensor):
    """A tensor of zeros that answers each comparison with yes, and each distance with 0."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The answer that a harness hopes for."""
        with torch._C.DisableTorchFunctionSubclass():
            if func.__name__ in ("equal", "allclose", "isfinite", "all"):
                return torch.tensor(True)
            result = func(*args, **(kwargs or {}))
            return torch.zeros_like(result) if func.__name__ in ("sub", "norm", "__sub__") else result


def lazily(kernel: Any, call: Call) -> Any:
    """Tensors that compute later."""
    return tuple(Lazy.of(x, lambda i=i: call.right()[i]) for i, x in enumerate(call.empty()))  # type: ignore[misc]


def into_queries(kernel: Any, call: Call) -> Any:
    """The output, written over q."""
    out, lse = call.fill(call.right())
    return call.inputs[0].copy_(out), lse


def changes(number: int) -> type[Honest]:
    """A kernel that doubles one of its inputs after it computed."""

    def answer(kernel: Any, call: Call) -> Any:
        results = call.fill(call.right())
        call.inputs[number].mul_(2)
        return results

    return answers(answer)


# The container is odd.
ReturnsNone = returns(lambda out, lse: None)
ReturnsGenerator = returns(lambda out, lse: (x for x in (out, lse)))
ReturnsList = returns(lambda out, lse: [out, lse])
ReturnsDict = returns(lambda out, lse: {"out": out, "lse": lse})
ReturnsText = returns(lambda out, lse: "ok")
TooShort = returns(lambda out, lse: (out,))
TooLong = returns(lambda out, lse: (out, lse, lse))
OutAlone = returns(lambda out, lse: out)
OutTwice = returns(lambda out, lse: (out, out))
Swapped = returns(lambda out, lse: (lse, out))

# A tensor is odd.
LazyTensor = answers(lazily)
LyingTensor = answers(lambda kernel, call: tuple(x.zero_().as_subclass(Liar) for x in call.fill(call.empty())))
NumpyArray = returns(lambda out, lse: (out.cpu().numpy(), lse.cpu().numpy()))
DuckTensor = returns(lambda out, lse: (SimpleNamespace(shape=out.shape, dtype=out.dtype, device=out.device), lse))
Float64Out = returns(lambda out, lse: (out.double(), lse))
Bfloat16Out = returns(lambda out, lse: (out.bfloat16(), lse))
ComplexOut = returns(lambda out, lse: (out.to(torch.complex64), lse))
HalfLse = returns(lambda out, lse: (out, lse.half()))
FlatOut = returns(lambda out, lse: (out.flatten(1), lse))
BatchedOut = returns(lambda out, lse: (out[None], lse))
TransposedLse = returns(lambda out, lse: (out, lse.T))
Base2Lse = answers(lambda kernel, call: call.fill([(right := call.right())[0], right[1] / math.log(2)]))
ExpandedOut = answers(lambda kernel, call: ((right := call.right())[0][:1].expand_as(right[0]), right[1]))
MetaOut = returns(lambda out, lse: (out.to("meta"), lse))
SparseOut = returns(lambda out, lse: (out.to_sparse(), lse))
OutWithGrad = returns(lambda out, lse: (out.clone().requires_grad_(), lse))
OutIsQueries = answers(into_queries)
GradientsTooShortBackward = backward(answers(lambda kernel, call: call.fill(call.right())[:2]))
Float64DqBackward = backward(answers(lambda kernel, call: ((right := call.fill(call.right()))[0].double(), *right[1:])))

# An input is changed.
ChangesQueries = changes(0)
ChangesValues = changes(2)
ChangesDoutBackward = backward(changes(0))

# The plan is odd.
PlansLess = plans(lambda plan: with_problem(plan, mask=part(plan.problem, plan.problem.concrete_mask.seqlen_k // 2)))
PlansForwardBackward = plans(lambda plan: with_problem(plan, direction=Direction.FORWARD))
NoPlan = plans(lambda plan: None)
DictPlan = plans(vars)
WrongForm = with_form(Form.CAUSAL)
UnknownForm = with_form("triangular")
LongBackend = with_backend("x" * 10_000_000)
BackendWithEscapes = with_backend("\x1b[31mred\x1b[0m\r\x00\n\u2028 \ud800")
NumberAsBackend = with_backend(7)
NegativeBytes = with_bytes(-1)
HugeBytes = with_bytes(10**30)
NanBytes = with_bytes(math.nan)
TextAsBytes = with_bytes("many")
BytesRaise = with_bytes(property(raise_lookup))
