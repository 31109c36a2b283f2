"""Samples of heads: heads that stand for all heads of a problem whose reference would take many minutes.

Kernels compute each head in the same way, over all queries and keys. An error that depends on the length is in every
head. The heads are drawn, so no kernel knows them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random, SystemRandom

import torch
from torch import Tensor

from longca.manifests import Problem
from longca.masks import BlockSparseMask
from longca_bench.verification.inputs import Inputs

__all__ = ["SAMPLED_PAIRS", "HeadSample", "sample_heads"]

#: Pairs over all heads above which a reference samples heads. The sampled heads have no more pairs, but they are two at
#: least. A reference computes the visible pairs of a mask, and all pairs of a block-sparse mask.
SAMPLED_PAIRS = 2**36
_LEAST = 2


@dataclass(frozen=True)
class HeadSample:
    """The numbers of some KV heads of a problem, and of query heads that they serve."""

    heads_kv: tuple[int, ...]
    heads_q: tuple[int, ...]

    @classmethod
    def grouped(cls, heads_kv: Iterable[int], group: int) -> HeadSample:
        """Some KV heads with all their query heads, a group for each."""
        some = tuple(heads_kv)
        return cls(some, tuple(head * group + each for head in some for each in range(group)))

    def problem(self, problem: Problem) -> Problem:
        """The problem of these heads alone."""
        has_all = len(self.heads_q) == problem.heads_q
        return problem if has_all else problem.narrowed(self.heads_q, self.heads_kv)

    def inputs(self, inputs: Inputs) -> Inputs:
        """The tensors of these heads. They have memory of their own, unless these are all heads."""
        return Inputs(*(self.of(name, getattr(inputs, name)) for name in ("q", "k", "v", "dout")))

    def of(self, name: str, tensor: Tensor) -> Tensor:
        """These heads of a tensor, by its name: of `lse` [Hq, Tq], or of any other [T, H, D]."""
        indices, dim = self.indices(name), int(name != "lse")
        if len(indices) == tensor.shape[dim]:
            return tensor
        return tensor.index_select(dim, torch.tensor(indices, dtype=torch.int64, device=tensor.device))

    def indices(self, name: str) -> tuple[int, ...]:
        """Numbers of the heads in a tensor, by its name."""
        return self.heads_kv if name in ("k", "v", "dk", "dv") else self.heads_q


def sample_heads(problem: Problem, random: Random = SystemRandom()) -> HeadSample | None:
    """Heads for a problem's reference, or None for all heads. The system's random numbers cannot be predicted."""
    count = problem.num_heads_kv
    fits = max(_LEAST, SAMPLED_PAIRS * count // max(1, _pairs(problem)))
    if fits >= count:
        return None
    return HeadSample.grouped(sorted(random.sample(range(count), fits)), problem.heads_q // count)


def _pairs(problem: Problem) -> int:
    mask = problem.concrete_mask
    return problem.heads_q * mask.seqlen_q * mask.seqlen_k if isinstance(mask, BlockSparseMask) else problem.area
