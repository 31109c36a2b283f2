"""Pair: the forward of one kernel and the backward of another as one kernel.

Kernels compose by out and lse: the second kernel is planned as a part of a larger softmax, and differentiates with the
out and lse that the first one computed. Each has its own plan, and may take the mask in another form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.kernels.sinks import backward_with_sinks, forward_with_sinks
from longca.manifests import Problem
from longca.manifests.pairs import asked_of_halves

__all__ = ["Pair", "PairPlan"]


@dataclass(eq=False)
class PairPlan(Plan):
    """The plans of a pair's two kernels. The form is that of the kernel that computes the problem's direction.

    Attributes:
        first: The forward kernel's plan.
        second: The backward kernel's plan, or None in a forward, which does not need it.
    """

    first: Plan
    second: Plan | None = None

    @property
    def form_text(self) -> str:
        """The forms of both plans."""
        return " + ".join(dict.fromkeys(plan.form_text for plan in self._plans()))

    @property
    def metadata_bytes(self) -> int:
        """Bytes of both plans' tensors."""
        return sum(plan.metadata_bytes for plan in self._plans())

    @property
    def list_bytes(self) -> int:
        """Bytes of both plans' block lists."""
        return sum(plan.list_bytes for plan in self._plans())

    def _plans(self) -> tuple[Plan, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)


class Pair:
    """Two kernels as one, with the interface of `longca.kernels.base.Kernel`.

    Args:
        forward: Computes the forward.
        load_backward: Returns the kernel that computes the backward. It is called when the first backward is planned.
    """

    def __init__(self, forward: Kernel, load_backward: Callable[[], Kernel]) -> None:
        self._forward, self._load_backward = forward, load_backward

    def plan(self, problem: Problem) -> PairPlan:
        """Puts the mask on its device in the forms of both kernels, or in a forward in the first one's alone."""
        asked = asked_of_halves(problem)
        first = self._forward.plan(asked[0])
        if len(asked) == 1:
            return PairPlan(problem, first.form, first.backend, first)
        second = self._load_backward().plan(asked[1])
        backend = " + ".join(dict.fromkeys((first.backend, second.backend)))
        return PairPlan(problem, second.form, backend, first, second)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: PairPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs the first kernel's forward (see `longca.kernels.base.Kernel.forward`)."""
        return self._forward.forward(q, k, v, plan.first, out=out, lse=lse)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: PairPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the second kernel's backward (see `longca.kernels.base.Kernel.backward`)."""
        assert plan.second is not None, "a backward is planned with direction backward"
        return self._load_backward().backward(dout, q, k, v, out, lse, plan.second, dq=dq, dk=dk, dv=dv)

    def forward_with_sinks(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, plan: PairPlan
    ) -> tuple[Tensor, Tensor]:
        """Runs the first kernel's forward with sinks (see `longca.kernels.sinks`)."""
        return forward_with_sinks(self._forward, q, k, v, sinks, plan.first)

    def backward_with_sinks(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, sinks: Tensor, plan: PairPlan
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Runs the second kernel's backward with sinks (see `longca.kernels.sinks`)."""
        assert plan.second is not None, "a backward is planned with direction backward"
        return backward_with_sinks(self._load_backward(), dout, q, k, v, out, lse, sinks, plan.second)
