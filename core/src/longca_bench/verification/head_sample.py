"""Some heads that stand for all: of a problem so large that a reference for every head would take many minutes.

Heads are computed alike and apart, each over all queries and keys, so what goes wrong in a long sequence goes wrong in
every head; and what goes wrong in late heads alone, offsets that overflow for instance, does so in the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca.manifests import Problem
from longca.masks import BlockSparseMask
from longca_bench.verification.inputs import Inputs

__all__ = ["SAMPLED_PAIRS", "HeadSample", "sample_heads"]

#: Pairs over all heads above which a reference is of some heads, as many as have no more; but of two at least. They are
#: those that a reference computes: the visible ones, and of a block-sparse mask all.
SAMPLED_PAIRS = 2**36
_LEAST = 2  # the first and the last


@dataclass(frozen=True)
class HeadSample:
    """Some KV heads of a problem, each with all of its query heads.

    Attributes:
        heads_kv: Which KV heads.
        heads_q: Which query heads.
    """

    heads_kv: tuple[int, ...]
    heads_q: tuple[int, ...]

    def problem(self, problem: Problem) -> Problem:
        """What a problem asks of these heads."""
        return problem.narrowed(self.heads_q, self.heads_kv)

    def inputs(self, inputs: Inputs) -> Inputs:
        """These heads' tensors."""
        names = ("q", "k", "v", "dout")
        return Inputs(*(self.of(name, getattr(inputs, name)) for name in names))

    def of(self, name: str, tensor: Tensor) -> Tensor:
        """These heads of a tensor: of lse [Hq, Tq], of any other [T, H, D], by the tensor's name."""
        index = torch.tensor(self.indices(name), device=tensor.device)
        return tensor.index_select(0 if name == "lse" else 1, index)

    def indices(self, name: str) -> tuple[int, ...]:
        """Which heads of a tensor these are, by the tensor's name."""
        return self.heads_kv if name in ("k", "v", "dk", "dv") else self.heads_q


def sample_heads(problem: Problem) -> HeadSample | None:
    """The heads to compute a problem's reference for, evenly spread; None for all of them."""
    count = problem.num_heads_kv
    fits = max(_LEAST, SAMPLED_PAIRS * count // max(1, _pairs(problem)))
    if fits >= count:
        return None
    heads_kv = np.linspace(0, count - 1, fits).round().astype(int)
    group = problem.heads_q // count
    heads_q = heads_kv[:, None] * group + np.arange(group)
    return HeadSample(tuple(heads_kv.tolist()), tuple(heads_q.ravel().tolist()))


def _pairs(problem: Problem) -> int:
    mask = problem.concrete_mask
    return problem.heads_q * mask.seqlen_q * mask.seqlen_k if isinstance(mask, BlockSparseMask) else problem.area
