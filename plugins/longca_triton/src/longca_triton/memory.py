"""Bytes that the launches of a kit's kernel take beside its tensors. Torch-free."""

from __future__ import annotations

from longca.manifests import Problem
from longca_triton.config import Configs

__all__ = ["PREPARE_ELEMENTS", "padded_queries", "prepared_bytes"]

#: Elements of out, and of dout, that a program of `prepare` takes.
PREPARE_ELEMENTS = 8192


def padded_queries(queries: int, head_dim: int, configs: Configs) -> int:
    """Queries, rounded up to a whole block of every kernel that reads exponents and deltas, and of `prepare`."""
    multiple = max(PREPARE_ELEMENTS // head_dim, configs.dkdv.block_m, configs.dq.block_m)
    return -(-queries // multiple) * multiple


def prepared_bytes(problem: Problem, configs: Configs) -> int:
    """Bytes of exponents and deltas: two float32 numbers for each query and head of a backward, none in a forward."""
    if problem.direction == "forward":
        return 0
    return 2 * 4 * problem.heads_q * padded_queries(problem.concrete_mask.seqlen_q, problem.head_dim, configs)
