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

__all__ = ["BEYOND_FLOAT16", "WITHIN_FLOAT16", "Inputs", "draw_inputs"]

_CHUNK = 2**22  # numbers that a thread draws at a time: 128 K tokens of 64 heads have over a billion in each tensor
_MOST_THREADS = 16
#: Product of a query and an outlier key, a level. A level is 1024 in scores of head dim 256, and the range of float64's
#: exp ends at 709. The highest level is beyond float16's range of 65,504.
BEYOND_FLOAT16 = 2.0**14
#: The same for float16. The highest level is within its range, and scores are beyond that of float32's exp.
WITHIN_FLOAT16 = 6144.0
_LEVELS = 8
_OF_KEY = 8.0  # an outlier key's element, a level
_USUAL = 8.0  # length of a query of head dim 64


@dataclass(frozen=True)
class Inputs:
    """The tensors of a problem: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], and the output's gradient dout
    [Tq, Hq, Dv].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor

    def clone(self) -> Inputs:
        """The same values in memory of their own."""
        return Inputs(self.q.clone(), self.k.clone(), self.v.clone(), self.dout.clone())


def draw_inputs(problem: Problem, seed: int, outliers: float = 0.0) -> Inputs:
    """Standard normal tensors in the problem's dtype. The CPU draws them, so all devices get the same.

    `outliers` is the product of q and k, a level, of every second query and a few outlier keys. 0 is for no outliers.
    """
    mask = problem.concrete_mask
    queries, keys = (mask.seqlen_q, problem.heads_q), (mask.seqlen_k, problem.num_heads_kv)
    dim, dim_v = problem.dims
    shapes = (*queries, dim), (*keys, dim), (*keys, dim_v), (*queries, dim_v)
    dtype, device = torch_dtype(problem.dtype), torch_device(problem.device)
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        q, k, v, dout = (
            _normal(torch.empty(shape, dtype=dtype, device=device), (seed, index), pool)
            for index, shape in enumerate(shapes)
        )
    if outliers:
        _add_outliers(q, k, dout, np.random.default_rng(seed), outliers)
    return Inputs(q, k, v, dout)


def _add_outliers(q: Tensor, k: Tensor, dout: Tensor, random: np.random.Generator, product: float) -> None:
    """Gives every second query large products with a few keys: the first keys, and some others.

    One element of all heads holds them, and is 0 elsewhere. The keys have unequal levels of it. So the softmax of such
    a query has one weight of 1, or that of its other keys alone, by a lead of a whole level. Scores that are rounded to
    bfloat16 are off by 1/64 of a level. Limits by the rounding of weights therefore hold for these rows too, and the
    scores of the other queries are those of standard normal tensors. Gradients of these rows are small, so that no
    long query decides dk alone, with a single rounding.
    """
    tokens, heads, width = k.shape
    element = random.integers(width)
    others = random.permutation(np.arange(min(_LEVELS // 2, tokens), tokens))[: _LEVELS // 2]
    at = torch.from_numpy(np.r_[: min(_LEVELS // 2, tokens), others])
    levels = np.arange(1, _LEVELS + 1)[:, None].repeat(heads, axis=1)
    levels = random.permuted(levels, axis=0)[: len(at)] * random.choice((-1, 1), (len(at), heads))
    signs = random.choice((-1, 0, 1), q.shape[:2], p=(0.25, 0.5, 0.25))
    k[..., element] = 0.0
    k[at.to(k.device), :, element] = torch.from_numpy(levels * _OF_KEY).to(k)
    length = product / _OF_KEY
    q[..., element] = torch.from_numpy(signs * length).to(q)
    dout *= torch.from_numpy(np.where(signs, _USUAL / length, 1.0)[..., None]).to(dout)


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
