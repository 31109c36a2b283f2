"""The honest base of all misbehaving kernels, and three ways to make a kernel of one function.

A kernel misbehaves in one direction, and is right in the other. So the record of one direction has a fault, and the
record of the other one has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import new_class
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill, nothing_seen
from longca.manifests import Direction, Problem
from longca.masks import Form
from longca_builtin.naive import Naive

__all__ = ["Call", "Honest", "answers", "backward", "beside", "computes"]

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Call:
    """One call of a kernel.

    Attributes:
        inputs: q, k and v of a forward; dout, q, k, v, out and lse of a backward.
        plan: The plan.
        buffers: The caller's buffers, each of which may be None.
        compute: Computes right results of such inputs, in new tensors.
    """

    inputs: Tensors
    plan: Plan
    buffers: tuple[Tensor | None, ...]
    compute: Callable[..., Tensors]

    def right(self) -> Tensors:
        """The right results, in new tensors."""
        return self.compute(*self.inputs)

    def empty(self) -> Tensors:
        """New tensors for the results. Nothing is written to them."""
        if len(self.inputs) == 3:
            q = self.inputs[0]
            return torch.empty_like(q), torch.empty_like(nothing_seen(q))
        return tuple(map(torch.empty_like, self.inputs[1:4]))

    def fill(self, results: Iterable[Tensor]) -> Tensors:
        """The results, copied into the buffers that there are."""
        return tuple(fill(buffer, result) for buffer, result in zip(self.buffers, results, strict=True))


class Honest(Naive):
    """A kernel that is right.

    Attributes:
        direction: The direction in which it may misbehave.
        memory: Values that it keeps between calls. A value at `plan` is the plan that it computes by.
        calls: The calls so far in that direction.
    """

    direction = Direction.FORWARD

    def __init__(self) -> None:
        self.memory: dict[Any, Any] = {}
        self.calls = 0

    def plan(self, problem: Problem) -> Plan:
        """Plans for the form that the manifest offers."""
        plan = super().plan(problem)
        plan.form = Form.ROW_INTERVALS
        return plan

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, **buffers: Tensor | None) -> Any:
        """Attention of q to k and v. See `Kernel.forward`."""
        base: Any = super()
        used = self.memory.get("plan", plan)
        call = Call((q, k, v), plan, (buffers.get("out"), buffers.get("lse")), lambda *x: base.forward(*x, used))
        return self._answered(Direction.FORWARD, call)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: Plan,
        **buffers: Tensor | None,
    ) -> Any:
        """Gradients of q, k and v. See `Kernel.backward`."""
        base: Any = super()
        used = self.memory.get("plan", plan)
        given = tuple(buffers.get(name) for name in ("dq", "dk", "dv"))
        call = Call((dout, q, k, v, out, lse), plan, given, lambda *x: base.backward(*x, used))
        return self._answered(Direction.BACKWARD, call)

    def _answered(self, direction: Direction, call: Call) -> Any:
        if direction is not self.direction:
            return call.fill(call.right())
        self.calls += 1
        return self.answer(call)

    def answer(self, call: Call) -> Any:
        """The value that the call returns."""
        return call.fill(self.results(call))

    def results(self, call: Call) -> Iterable[Tensor]:
        """The results that go to the buffers."""
        return call.right()


def computes(results: Callable[[Any, Call], Iterable[Tensor]]) -> type[Honest]:
    """A kernel that puts the results of a function of itself and the call into the buffers."""
    return new_class("Misbehaving", (Honest,), exec_body=lambda body: body.update(results=results))


def answers(answer: Callable[[Any, Call], object]) -> type[Honest]:
    """A kernel that returns the value of a function of itself and the call."""
    return new_class("Misbehaving", (Honest,), exec_body=lambda body: body.update(answer=answer))


def beside(act: Callable[[], object]) -> type[Honest]:
    """A kernel that is right, and also does something else in each call."""

    def results(kernel: Any, call: Call) -> Iterable[Tensor]:
        right = call.right()
        act()
        return right

    return computes(results)


def backward(kernel: type[Honest]) -> type[Honest]:
    """The kernel that misbehaves in its backward as another one does in its forward."""
    return new_class("Misbehaving", (kernel,), exec_body=lambda body: body.update(direction=Direction.BACKWARD))
