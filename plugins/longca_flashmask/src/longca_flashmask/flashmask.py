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
from longca_flashmask.plan import FlashMaskPlan, make_plan
from longca_triton.config import Config, Configs, by_shared_memory
from longca_triton.kernel import FlashKernel, Launches

__all__ = ["FlashMask"]

_LARGE = {
    64: Configs(Config(64, 128, 4, 2, True), Config(64, 64, 4, 3, True), Config(64, 64, 4, 2, True)),
    128: Configs(Config(128, 64, 4, 2, True), Config(64, 64, 4, 2, True), Config(128, 64, 8, 3, True)),
    256: Configs(Config(128, 64, 8, 2, True), Config(64, 64, 8, 1, True), Config(64, 64, 4, 2, True)),
}
_MEDIUM = {
    64: Configs(Config(128, 64, 4, 3), Config(32, 64, 4, 2), Config(64, 64, 4, 2)),
    128: Configs(Config(128, 64, 8, 3), Config(64, 64, 8, 2), Config(64, 64, 8, 2)),
    256: Configs(Config(64, 64, 8, 2), Config(32, 64, 8, 1), Config(64, 32, 8, 2)),
}
_SMALL = {
    64: Configs(Config(128, 64, 4, 2), Config(32, 64, 4, 2), Config(64, 64, 4, 2)),
    128: Configs(Config(128, 32, 8, 2), Config(32, 64, 8, 2), Config(64, 32, 4, 2)),
    256: Configs(Config(64, 32, 8, 1), Config(32, 32, 8, 1), Config(32, 32, 8, 1)),
}


def choose(head_dim: int, capability: tuple[int, int] | None) -> Configs:
    """The configurations for a head dimension of 64, 128 or 256 on a device."""
    return by_shared_memory(capability, large=_LARGE, medium=_MEDIUM, small=_SMALL)[head_dim]


class FlashMask(FlashKernel[FlashMaskPlan]):
    """FlashMask in Triton.

    Args:
        configs: Configurations of the kernels. None stands for the choice of `choose` for the head dimension and
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
