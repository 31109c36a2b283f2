"""Inputs: seeded and random, never zeros, the same for every kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longca.kernels.base import torch_device, torch_dtype
from longca.manifests import Problem

__all__ = ["Inputs", "draw_inputs"]


@dataclass(frozen=True)
class Inputs:
    """The tensors of a problem.

    Attributes:
        q: [Tq, Hq, D].
        k: [Tk, Hkv, D].
        v: [Tk, Hkv, D].
        dout: Gradient of the output: [Tq, Hq, D].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    def clone(self) -> Inputs:
        """The same values in memory of their own."""
        return Inputs(self.q.clone(), self.k.clone(), self.v.clone(), self.dout.clone())


def draw_inputs(problem: Problem, seed: int) -> Inputs:
    """Standard normal tensors, rounded to the problem's dtype; drawn on the CPU, so that devices get the same."""
    mask, generator = problem.concrete_mask, torch.Generator().manual_seed(seed)

    def normal(tokens: int, heads: int) -> Tensor:
        drawn = torch.randn(tokens, heads, problem.head_dim, generator=generator)
        return drawn.to(torch_dtype(problem.dtype)).to(torch_device(problem.device))

    q, dout = (normal(mask.seqlen_q, problem.heads_q) for _ in range(2))
    k, v = (normal(mask.seqlen_k, problem.num_heads_kv) for _ in range(2))
    return Inputs(q, k, v, dout)
