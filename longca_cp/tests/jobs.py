"""What the jobs of the processes of a world share. A job gets plain values and returns plain values.

Every rank runs it. The files `*_jobs.py` have the jobs.
"""

from functools import lru_cache

import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh

import longca
from longca import masks
from longca.manifests import Device, Problem, Transport

NAMES = ("out", "lse", "dq", "dk", "dv")


def prepare():
    """Does the slow work of first use that needs no other rank."""
    attend(mask_of("causal", 3, ()), inputs(3, (2, 1), "float64"))
    for name in longca.registry().strategies:
        longca.registry().load_strategy(name)


@lru_cache(maxsize=64)
def mesh_of(sizes, order=None):
    """A mesh of named dims, given as ((name, size), …), in this order or another."""
    named = dict(sizes)
    names = order or tuple(named)
    return init_device_mesh("cpu", tuple(named[name] for name in names), mesh_dim_names=names)


@lru_cache(maxsize=8)
def mask_of(kind, seqlen, factors):
    """A pattern's mask, a tree, or a mask whose first and last queries see nothing and whose last keys nobody sees."""
    if kind == "gappy":
        third = seqlen // 3
        return masks.SliceMask([masks.Slice(third, 2 * third, 0, third, -seqlen, seqlen)], seqlen, seqlen)
    if kind == "empty":
        return masks.SliceMask([], seqlen, seqlen)
    return masks.tree(**dict(factors)) if kind == "tree" else masks.build(kind, seqlen, **dict(factors))


@lru_cache(maxsize=8)
def inputs(seqlen, heads, dtype, dims=(8, 8)):
    """q, k, v and dout of all tokens, the same on all ranks."""
    random = torch.Generator().manual_seed(seqlen)
    (heads_q, heads_kv), (dim, dim_v) = heads, dims
    shapes = [(seqlen, *each) for each in ((heads_q, dim), (heads_kv, dim), (heads_kv, dim_v), (heads_q, dim_v))]
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(getattr(torch, dtype)) for shape in shapes]


@lru_cache(maxsize=8)
def expected(kind, seqlen, factors, heads, dtype, of="float64", dims=(8, 8)):
    """The results of one process, computed in the dtype `of`."""
    tensors = [x.to(getattr(torch, of)) for x in inputs(seqlen, heads, dtype, dims)]
    return attend(mask_of(kind, seqlen, factors), tensors)


def attend(mask, tensors, kernel="naive", **parallel):
    """out, lse, dq, dk and dv of longca.attention."""
    *qkv, dout = tensors
    qkv = [x.clone().requires_grad_() for x in qkv]
    out, lse = longca.attention(*qkv, mask, kernel=kernel, return_lse=True, **parallel)
    return [out.detach(), lse, *torch.autograd.grad(out, qkv, dout)]


def directly(mask, tensors, kernel, strategy, mesh, layout, keep, transport="auto"):
    """The same, by the strategy's own methods."""
    q, k, v, dout = tensors
    problem = problem_of(mask, q, k, v)
    made = longca.registry().load_strategy(strategy)(mesh, transport=Transport(transport))
    plan = made.plan(problem, layout, kernel)
    kept = [] if keep else None
    out, lse = made.forward(q, k, v, plan, kept=kept)
    return [out, lse, *made.backward(dout, q, k, v, out, lse, plan, kept=kept)]


def problem_of(mask, q, k, v=None):
    dtype = str(q.dtype).removeprefix("torch.")
    sizes = {"heads_q": q.shape[1], "heads_kv": k.shape[1], "head_dim": q.shape[2]}
    sizes["head_dim_v"] = None if v is None else v.shape[2]
    return Problem(mask=mask, dtype=dtype, device=Device("cpu"), direction="backward", **sizes)


def rank_of(sizes, order):
    """This process's rank in the layout, from its coordinates."""
    coordinate = dict(zip(order or dict(sizes), mesh_of(sizes, order).get_coordinate(), strict=True))
    return int(np.ravel_multi_index([coordinate[name] for name, _ in sizes], [size for _, size in sizes]))


def errors(results, wanted, layout, rank):
    """The largest difference of each tensor, with an lse of −∞ in just the same places, and out 0 there."""
    out, lse, *grads = results
    unseen = lse == -torch.inf
    mine = [layout.shard(x, rank) for x in (wanted[0], wanted[1].T, *wanted[2:])]
    assert torch.equal(unseen, -torch.inf == mine[1].T)
    assert not out.transpose(0, 1)[unseen].any()
    assert all(x.dtype is results[0].dtype and x.is_contiguous() for x in (out, *grads))
    mine_lse = mine[1].T.masked_fill(unseen, 0)
    pairs = [(out, mine[0]), (lse.masked_fill(unseen, 0), mine_lse), *zip(grads, mine[2:], strict=True)]
    return [(a.double() - b.double()).abs().max().item() if a.numel() else 0.0 for a, b in pairs]


def said(call):
    """The error that a call raises, and its kind."""
    try:
        call()
    except longca.errors.LongCAError as error:
        return type(error).__name__, str(error)
    return None
