"""flashmask: FlashAttention-2 in Triton that skips hidden tiles and masks partly visible ones by intervals.

A mask reaches the kernels as each query's visible keys, and for dk and dv as each key's visible queries, in at most
eight intervals: O(S) memory. A table lists runs of tiles. A program walks its runs, and compares with its intervals
only in tiles that are partly visible.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].

Source: FlashMask (arXiv 2410.01359) has the idea. Its four bounds a key are the complement of at most two intervals of
queries.
"""

from __future__ import annotations

from longca import Problem
from longca_flashmask.configs import choose
from longca_flashmask.plan import FlashMaskPlan, make_plan
from longca_triton.kernel import FlashKernel, Launches

__all__ = ["FlashMask"]


class FlashMask(FlashKernel[FlashMaskPlan]):
    """FlashMask in Triton.

    Args:
        configs: Configurations of the kernels. None stands for the choice of `configs.py` for the head dimension and
            device.
    """

    def plan(self, problem: Problem) -> FlashMaskPlan:
        """Puts intervals and tiles on the device. Those of the backward come only with a problem of both directions."""
        return make_plan(problem, self.configs or choose(problem.head_dim, problem.device.capability))

    @property
    def launches(self) -> Launches[FlashMaskPlan]:
        """The launches of this distribution."""
        from longca_flashmask import launches  # brings in Triton

        return launches
