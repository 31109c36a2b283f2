"""Masks and inputs that the kernels' tests share."""

import itertools
from typing import NamedTuple

import numpy as np
import torch

from longca import masks
from longca.kernels.base import device_of
from longca.manifests import Problem

from .reference import Result, reference

SEQLEN = 70
DOCUMENTS = [1, 33, 7, 29]
FACTORS = {
    "full": {},
    "causal": {},
    "full_sliding_window": {"window": 9},
    "causal_sliding_window": {"window": 9},
    "full_document": {"documents": DOCUMENTS},
    "causal_document": {"documents": DOCUMENTS},
    "block_causal_document": {"documents": DOCUMENTS, "block": 8},
    "prefix_lm_causal": {"prefix": 23},
    "prefix_lm_document": {"documents": DOCUMENTS, "prefix": 11},
    "shared_question": {"documents": [17, 20, 1, 32]},
    "global_sliding_window": {"window": 5, "global_tokens": 3},
    "causal_blockwise": {"documents": DOCUMENTS},
    "uniform_block_sparse": {"block": 16, "kept": 0.4, "seed": 1},
    "variable_block_sparse": {"boundaries": [0, 5, 6, 30, 57, 70], "kept": 0.4, "seed": 2},
}
RECTANGULAR = ("full", "causal", "full_sliding_window", "causal_sliding_window")


def pattern_mask(pattern, seqlen_k=None, **more):
    """A pattern's mask at SEQLEN queries, all its awkward factors included."""
    return masks.build(pattern, SEQLEN, seqlen_k=seqlen_k, **FACTORS[pattern], **more)


def gappy_mask():
    """Rows and keys that see nothing, at either end and in the middle."""
    rows = [masks.Slice(q0, q1, k0, k1, -99, hi) for q0, q1, k0, k1, hi in ((3, 9, 2, 20, 99), (20, 35, 22, 37, 2))]
    return masks.SliceMask(rows, 40, 41)


def per_head_mask(heads, seqlen=SEQLEN, empty_rows=True):
    """A block-sparse mask of its own for each head. Head 0 has query blocks that see nothing."""
    bounds = [0, 9, 16, 40, 41, seqlen]
    kept = np.random.default_rng(heads).random((heads, 5, 5)) < 0.5
    kept[:, :, 1] |= ~kept.any(-1)
    if empty_rows:
        kept[0, 2] = kept[0, 4] = False
    return masks.BlockSparseMask(kept, bounds, bounds)


def mask_cases():
    """(name, mask, heads_q, heads_kv): all patterns and everything else a mask can be."""
    cases = [(name, pattern_mask(name), 8, 2) for name in masks.PATTERNS]
    cases += [(f"{name}-{keys}-keys", pattern_mask(name, keys), 4, 2) for name in RECTANGULAR for keys in (23, 101)]
    cases += [
        (f"{name}-per-{whose}-head", pattern_mask(name, heads=heads), 8, 2)
        for name in ("uniform_block_sparse", "variable_block_sparse")
        for whose, heads in (("kv", 2), ("query", 8))
    ]
    cases += [
        ("per-kv-head-empty-rows", per_head_mask(2), 8, 2),
        ("per-query-head-empty-rows", per_head_mask(8), 8, 2),
        ("gappy", gappy_mask(), 8, 1),
        ("empty", masks.build("causal", 64).cut([(0, 20)], [(30, 60)]), 4, 2),
        ("mha", pattern_mask("causal_document"), 3, 3),
        ("8:1", pattern_mask("prefix_lm_document"), 8, 1),
        ("one-token", masks.build("causal", 1), 2, 1),
        # Longer than the key blocks of fused kernels, so that some rows see nothing of the first ones.
        ("long-window", masks.build("causal_sliding_window", 700, window=40), 2, 1),
        ("long-documents", masks.build("full_document", 700, documents=[600, 100]), 2, 1),
        ("long-causal", masks.build("causal", 700), 2, 1),
    ]
    return cases


class Inputs(NamedTuple):
    """The tensors that both directions read."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor


def inputs(mask, heads_q, heads_kv, head_dim=16, dtype=torch.float64, device="cpu", seed=0, head_dim_v=None):
    """Random inputs for a mask."""
    generator = torch.Generator().manual_seed(seed)
    of_q, of_k, wide = (mask.seqlen_q, heads_q), (mask.seqlen_k, heads_kv), head_dim_v or head_dim
    shapes = (*of_q, head_dim), (*of_k, head_dim), (*of_k, wide), (*of_q, wide)
    return Inputs(*(torch.randn(s, generator=generator, dtype=torch.float64).to(device, dtype) for s in shapes))


def problem(mask, given, direction="backward", **more):
    """The problem that inputs pose."""
    return Problem(
        mask=mask,
        heads_q=given.q.shape[1],
        heads_kv=given.k.shape[1],
        head_dim=given.q.shape[2],
        head_dim_v=given.v.shape[2],
        dtype=str(given.q.dtype).removeprefix("torch."),
        device=device_of(given.q),
        direction=direction,
        **more,
    )


def run(kernel, mask, given, **more):
    """Both directions of a kernel."""
    plan = kernel.plan(problem(mask, given, **more))
    out, lse = kernel.forward(given.q, given.k, given.v, plan)
    return Result(out, lse, *kernel.backward(given.dout, given.q, given.k, given.v, out, lse, plan))


def run_in_parts(kernel, mask, given, cuts, **more):
    """Both directions with the keys split at `cuts`: each part forward, merged by lse, each part backward."""
    bounds = [0, *cuts, mask.seqlen_k]
    parts = []
    for start, stop in itertools.pairwise(bounds):
        part = given._replace(k=given.k[start:stop], v=given.v[start:stop])
        plan = kernel.plan(problem(mask.cut([(0, mask.seqlen_q)], [(start, stop)]), part, **more))
        parts.append((part, plan, *kernel.forward(part.q, part.k, part.v, plan)))
    lse = torch.stack([part_lse for *_, part_lse in parts]).logsumexp(0)
    finite = lse.masked_fill(lse == -torch.inf, 0.0)
    wide = sum((part_lse - finite).exp().T[..., None] * part_out for *_, part_out, part_lse in parts)
    out = wide.to(given.q.dtype)
    grads = [kernel.backward(part.dout, part.q, part.k, part.v, out, lse, plan) for part, plan, *_ in parts]
    dqs, dks, dvs = zip(*grads, strict=True)
    return Result(out, lse, sum(dq.to(lse.dtype) for dq in dqs), torch.cat(dks), torch.cat(dvs))


def truth(mask, given, scale=None):
    """The reference's result for inputs."""
    return reference(*given, mask, scale)
