"""bsa: block-sparse attention in Triton, for blocks of every size, grouped heads and both directions.

Each block of queries has a list of the runs of key blocks that it sees. In the backward, each block of keys has a list
of the queries that see it. If the query heads of a group share their mask, they are rows of one tile. Small blocks then
fill the tensor cores too.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].

Sources: LongCA-bench (arXiv 2510.17896) asks for such a kernel. The kernels follow the algorithms of FlashAttention-2
(arXiv 2307.08691). The code is LongCA's own.
"""

from __future__ import annotations

from torch import Tensor

from longca import Problem
from longca_triton.kernel import FlashKernel, Launches
from longca_vsa.bsa.plan import BSAPlan, make_plan

__all__ = ["BlockSparseAttention"]


class BlockSparseAttention(FlashKernel[BSAPlan]):
    """Block-sparse attention in Triton.

    Args:
        configs: Configurations of the kernels. None stands for the choice of `configs.py` for the head dimension,
            device and blocks.
    """

    def plan(self, problem: Problem) -> BSAPlan:
        """Puts lists and tiles on the device. Those of the backward come only with a problem of both directions."""
        return make_plan(problem, self.configs)

    @property
    def launches(self) -> Launches[BSAPlan]:
        """The launches of bsa."""
        from longca_vsa.bsa import launches  # brings in Triton

        return launches

    def launch_backward(
        self, inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], results: tuple[Tensor, ...], plan: BSAPlan
    ) -> None:
        """Writes dq, dk and dv, part by part if the plan stores gradients of scores."""
        if not plan.ranges:
            super().launch_backward(inputs, results, plan)
            return
        from longca_vsa.bsa.launches_by_part import launch_parts  # brings in Triton

        launch_parts(inputs, results, plan)
