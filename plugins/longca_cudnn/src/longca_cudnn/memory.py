"""Bytes that cuDNN's attention allocates besides its tensors, for its manifest. Torch-free.

cuDNN does not document its workspace. These are the sizes seen on an H200:

- A backward sums dq in float32.
- If query heads share a KV head, it has dk and dv for each query head, in float32 if the graph is ragged.
- A ragged graph is planned for rounded sizes.
- A deterministic backward takes a number for each query, key and head.

Source: `plans.py` beside this file, and results/h200. A test compares the functions with these results.
"""

from __future__ import annotations

from longca import Problem
from longca.kernels.sizes import Tensors
from longca.masks import Form, SliceMask
from longca_cudnn.documents import Documents, bucket, documents_of

__all__ = ["plan_bytes", "workspace"]

_TILE = 128


def workspace(problem: Problem, form: Form) -> int:
    """Bytes of the sums of gradients in a backward. A forward takes next to nothing."""
    if problem.direction == "forward":
        return 0
    tensors, found = Tensors.of(problem), _documents(problem, form)
    if found is None or found.are_one_dense:
        expanded = 2 * tensors.k * (problem.heads_q // problem.num_heads_kv) if problem.is_gqa else 0
        exact = 2 * problem.heads_q * tensors.tokens_q * tensors.tokens_k if problem.deterministic else 0
        return tensors.wide_q + expanded + tensors.lse + exact
    tokens_q, tokens_k = bucket(tensors.tokens_q, _TILE), bucket(tensors.tokens_k, _TILE)
    each = 2 * tokens_k * problem.head_dim if problem.is_gqa else 0
    return 4 * problem.heads_q * (tokens_q * (problem.head_dim + 2) + each)


def plan_bytes(problem: Problem, form: Form) -> int:
    """Bytes of a ragged graph's document starts in each tensor, and of the document lengths. A dense graph has none."""
    found = _documents(problem, form)
    if found is None or found.are_one_dense or not found.count:
        return 0
    batch = bucket(found.count, 1)
    # First query and key of each document, and the offsets of these in queries, in keys and in the log-sum-exp.
    return 8 * (batch + 1) * (2 + 3) + 2 * 4 * batch


def _documents(problem: Problem, form: Form) -> Documents | None:
    """The documents that cuDNN gets. None for a block-sparse mask under which all heads see everything."""
    mask = problem.concrete_mask.head(0)
    return documents_of(mask, form) if isinstance(mask, SliceMask) else None
