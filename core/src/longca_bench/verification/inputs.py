"""Inputs: seeded random tensors, the same for every kernel."""

from __future__ import annotations

import os
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longca.kernels.base import torch_device, torch_dtype
from longca.manifests import Problem

__all__ = ["Inputs", "draw_inputs"]

_CHUNK = 2**22  # numbers that a thread draws at a time: 128 K tokens of 64 heads have over a billion in each tensor
_MOST_THREADS = 16


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
    """Standard normal tensors in the problem's dtype. The CPU draws them, so all devices get the same."""
    mask = problem.concrete_mask
    queries = (mask.seqlen_q, problem.heads_q, problem.head_dim)
    keys = (mask.seqlen_k, problem.num_heads_kv, problem.head_dim)
    dtype, device = torch_dtype(problem.dtype), torch_device(problem.device)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        q, k, v, dout = (
            _normal(torch.empty(shape, dtype=dtype, device=device), (seed, index), pool)
            for index, shape in enumerate((queries, keys, keys, queries))
        )
    return Inputs(q, k, v, dout)


def _normal(tensor: Tensor, seed: tuple[int, ...], pool: Executor) -> Tensor:
    """Fills a tensor in chunks with a seed each, so the number of threads does not change the values."""
    flat = tensor.view(-1)

    def fill(chunk: int) -> None:
        there = flat[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        drawn = np.random.default_rng((*seed, chunk)).standard_normal(len(there), dtype=np.float32)
        there.copy_(torch.from_numpy(drawn).to(tensor.device))

    for _ in pool.map(fill, range(-(-len(flat) // _CHUNK))):
        pass  # an error in a thread is raised here
    return tensor
