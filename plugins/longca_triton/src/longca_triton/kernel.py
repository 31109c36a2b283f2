"""The adapter of kernels of FlashAttention's kind: `forward` and `backward` around four launches.

A distribution subclasses `FlashPlan` with its tables of a mask, writes the launches in a module, and subclasses
`FlashKernel` with the making of a plan. Shapes: q, out and dout [Tq, Hq, D], k and v [Tk, Hkv, D], lse
[Hq, Tq].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill, on_device_of, readable, writable
from longca.manifests import Problem
from longca_triton.config import Configs

__all__ = ["FlashKernel", "FlashPlan", "Launches"]


@dataclass(eq=False)
class FlashPlan(Plan):
    """A plan of such a kernel.

    Attributes:
        configs: The kernels' configurations. The plan's tables are of their tiles.
    """

    configs: Configs

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.problem.heads_q // self.problem.num_heads_kv


PlanT = TypeVar("PlanT", bound=FlashPlan)
PlanT_contra = TypeVar("PlanT_contra", bound=FlashPlan, contravariant=True)


class Launches(Protocol[PlanT_contra]):
    """The four launches, as functions of a module. Every tensor but lse has a contiguous last dimension."""

    def launch_attend(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, plan: PlanT_contra) -> None:
        """Writes out and lse."""

    def launch_prepare(self, dout: Tensor, out: Tensor, lse: Tensor, plan: PlanT_contra) -> Tensor:
        """Returns each query's exponent and delta, as `longca_triton.prepare.launch_prepare` does."""

    def launch_dkdv(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        prepared: Tensor,
        dk: Tensor,
        dv: Tensor,
        plan: PlanT_contra,
    ) -> None:
        """Writes dk and dv."""

    def launch_dq(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, prepared: Tensor, dq: Tensor, plan: PlanT_contra
    ) -> None:
        """Writes dq."""


class FlashKernel(ABC, Generic[PlanT]):
    """A `longca.kernels.base.Kernel` of four launches.

    Args:
        configs: Configurations of the kernels. None stands for the distribution's choice for a problem.
    """

    def __init__(self, configs: Configs | None = None) -> None:
        self.configs = configs

    @abstractmethod
    def plan(self, problem: Problem) -> PlanT:
        """Puts the problem's mask on its device. The backward's tables come only with a problem of both directions."""

    @property
    @abstractmethod
    def launches(self) -> Launches[PlanT]:
        """The launches. They are imported here and no earlier, so that listing a kernel needs no Triton."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: PlanT,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attention of q to k and v, as `longca.kernels.base.Kernel.forward` describes it."""
        q, k, v = (readable(x) for x in (q, k, v))
        result = writable(out, q)
        sums = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device) if lse is None else lse
        with on_device_of(q):
            self.launches.launch_attend(q, k, v, result, sums, plan)
        return fill(out, result), sums

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: PlanT,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v, as `longca.kernels.base.Kernel.backward` describes them."""
        q, k, v, out, dout = (readable(x) for x in (q, k, v, out, dout))
        dq_result, dk_result, dv_result = writable(dq, q), writable(dk, k), writable(dv, v)
        with on_device_of(q):
            self.launch_backward((dout, q, k, v, out, lse), (dq_result, dk_result, dv_result), plan)
        return fill(dq, dq_result), fill(dk, dk_result), fill(dv, dv_result)

    def launch_backward(
        self, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], results: tuple[Tensor, ...], plan: PlanT
    ) -> None:
        """Writes dq, dk and dv.

        Args:
            inputs: dout, q, k, v, out and lse. Every one but lse has a contiguous last dimension.
            results: dq, dk and dv.
            plan: The plan.
        """
        launches, (dout, q, k, v, out, lse), (dq, dk, dv) = self.launches, inputs, results
        prepared = launches.launch_prepare(dout, out, lse, plan)
        launches.launch_dkdv(dout, q, k, v, prepared, dk, dv, plan)
        launches.launch_dq(dout, q, k, v, prepared, dq, plan)
