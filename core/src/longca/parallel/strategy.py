"""The contract of a context-parallel strategy's implementation: plan, forward, backward, on local shards.

Shapes: q, out and their gradients [Tl, Hq, D], k, v and theirs [Tl, Hkv, D], lse [Hq, Tl], where Tl are the tokens that
the layout gives this rank. All ranks of the mesh call the same methods in the same order.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.kernels.base import Kernel
from longca.manifests import Layout, Problem

__all__ = ["Strategy", "StrategyPlan"]


class StrategyPlan(Protocol):
    """A problem made ready for one rank: every step's kernel plan, and what moves; reused by every layer."""

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the mask's metadata on this rank's device, over all of its steps."""


class Strategy(Protocol):
    """A strategy on a mesh. It keeps nothing between calls but its process groups."""

    def __init__(self, mesh: DeviceMesh) -> None: ...

    def plan(self, problem: Problem, layout: Layout, kernel: Kernel) -> StrategyPlan:
        """Plans all of this rank's steps, each as `longca.manifests.resolve.step_problems` has it.

        Args:
            problem: What is asked of all ranks together, on the global mask.
            layout: Who holds what and computes what: of this strategy, for this problem and mesh.
            kernel: What computes the steps.
        """

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, plan: StrategyPlan, *, kept: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attention of all ranks' tokens, of which each rank gives and gets its own.

        Args:
            q: [Tl, Hq, D].
            k: [Tl, Hkv, D].
            v: [Tl, Hkv, D].
            plan: What `plan` returned.
            kept: Where given, what the backward would otherwise have to exchange again is appended to it. A strategy
                that has no use for that leaves it empty.

        Returns:
            out [Tl, Hq, D] in q's dtype, and lse [Hq, Tl].
        """

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: StrategyPlan,
        *,
        kept: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of this rank's q, k and v.

        Args:
            dout: Gradient of the output: [Tl, Hq, D].
            q: [Tl, Hq, D]. Neither this nor the next four are read where `kept` holds something.
            k: [Tl, Hkv, D].
            v: [Tl, Hkv, D].
            out: The forward's output.
            lse: The forward's log-sum-exp.
            plan: The forward's plan, made for the direction `backward`.
            kept: What the forward kept, if it was asked to.
        """
