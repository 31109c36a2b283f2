"""bsa: block-sparse attention in Triton, for blocks of every size, grouped heads and both directions.

Each block of queries walks over a list of the runs of key blocks that it sees, and in the backward each block of keys
over the queries that see it. Where the query heads of a group share their mask, they are rows of one tile, so that
small blocks fill the tensor cores too.

Shapes: q and out [Tq, Hq, D], k and v [Tk, Hkv, D], lse [Hq, Tq].

Sources: LongCA-bench (arXiv 2510.17896), whose open question this answers; FlashAttention-2 (arXiv 2307.08691), whose
algorithms the kernels follow; the code is LongCA's own.
"""

from __future__ import annotations

from longca import Problem
from longca_triton.kernel import FlashKernel, Launches
from longca_vsa.bsa.plan import BSAPlan, make_plan

__all__ = ["BlockSparseAttention"]


class BlockSparseAttention(FlashKernel[BSAPlan]):
    """Block-sparse attention in Triton.

    Args:
        configs: What to compile the kernels with; None for what `configs.py` has for the head dimension, device and
            blocks.
    """

    def plan(self, problem: Problem) -> BSAPlan:
        """Puts lists and tiles on the device: those of the backward only where it is asked for."""
        return make_plan(problem, self.configs)

    @property
    def launches(self) -> Launches[BSAPlan]:
        """The launches of bsa."""
        from longca_vsa.bsa import launches  # brings in Triton

        return launches
