"""Share: what one rank holds of a problem, in bytes and heads. Torch-free.

The formulas of `longca_cp.peaks` and `longca_cp.pushed_memory` start from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from longca.manifests import Problem
from longca.manifests.offers import DTYPE_BYTES
from longca_cp.block_placement import most_tokens

__all__ = ["Share"]

#: The axes of rings. A placement deals tokens to parts along them.
_RINGS = ("ring", "outer", "inner")


@dataclass(frozen=True)
class Share:
    """A rank's share of a problem.

    Attributes:
        q: Bytes of its queries.
        kv: Bytes of its keys and values together.
        wide: Ratio of the bytes of a sum's element to the bytes of an element.
        heads_kv: KV heads.
        problem: The problem of all ranks together.
        nccl: Whether NCCL moves the tensors.
        pushes: The axes with links.
    """

    q: int
    kv: int
    wide: int
    heads_kv: int
    problem: Problem
    nccl: bool
    pushes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, problem: Problem, axis_sizes: Mapping[str, int], nccl: bool, pushes: frozenset[str] = frozenset()
    ) -> Share:
        """The largest share of any rank."""
        size, ranks = DTYPE_BYTES[problem.dtype], prod(axis_sizes.values())
        parts = prod(axis_sizes.get(axis, 1) for axis in _RINGS)
        row = most_tokens(problem.concrete_mask, parts, ranks) * problem.head_dim * size
        heads_kv = problem.num_heads_kv
        return cls(problem.heads_q * row, 2 * heads_kv * row, max(1, 4 // size), heads_kv, problem, nccl, pushes)

    def by_heads(self, ranks: int) -> Share:
        """The share after an exchange of heads among `ranks` ranks. Only copies of KV heads change its bytes."""
        copies = max(1, ranks // self.heads_kv)
        return replace(self, kv=copies * self.kv, heads_kv=max(1, self.heads_kv // ranks))
