"""Mix: several kernels as one, each problem with the one that the cost model predicts to be fastest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.manifests import Problem
from longca.plugins import Registry
from longca_advice.mixes import taken

__all__ = ["Mix", "MixPlan"]


@dataclass(eq=False)
class MixPlan(Plan):
    """The plan of the kernel or pair that a mix takes for a problem.

    Attributes:
        problem: The problem.
        form: The form of the inner plan.
        backend: The kernel's name, and the function and library that run.
        kernel: The name of the kernel or pair.
        inner: Its plan.
    """

    kernel: str
    inner: Plan

    @property
    def form_text(self) -> str:
        """The form of the inner plan."""
        return self.inner.form_text

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the inner plan's tensors."""
        return self.inner.metadata_bytes

    @property
    def list_bytes(self) -> int:
        """Bytes of the inner plan's block lists."""
        return self.inner.list_bytes


class Mix:
    """Several kernels as one, with the interface of `longca.kernels.base.Kernel`.

    Args:
        registry: Loads the kernels, when the first problem takes them.
        name: The mix's name.
    """

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry, self._name = registry, name

    def plan(self, problem: Problem) -> MixPlan:
        """The plan of the kernel or pair that is predicted to be fastest.

        Raises:
            UnsupportedError: No kernel and no pair of the mix takes the problem.
        """
        kernel = taken(self._registry, self._name, problem)
        inner = self._load(kernel).plan(problem)
        return MixPlan(problem, inner.form, f"{kernel}: {inner.backend}", kernel, inner)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: MixPlan, *, out: Tensor | None = None, lse: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Runs the forward of the plan's kernel (see `longca.kernels.base.Kernel.forward`)."""
        return self._load(plan.kernel).forward(q, k, v, plan.inner, out=out, lse=lse)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: MixPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the backward of the plan's kernel (see `longca.kernels.base.Kernel.backward`)."""
        return self._load(plan.kernel).backward(dout, q, k, v, out, lse, plan.inner, dq=dq, dk=dk, dv=dv)

    def _load(self, kernel: str) -> Kernel:
        found: Kernel = self._registry.load(kernel)
        return found
