"""Chunks: into how many parts the heads of a step are split, so that one travels while another is computed.

A collective of NCCL is a kernel, and takes multiprocessors from the one that it runs beside. Most kernels deal out
their tiles as multiprocessors come free, and lose no more than was taken. Under a full mask FlashAttention-3 deals them
beforehand: some wait until the transfer is done, which waits for other ranks. On four H200s a forward of ulysses in two
chunks took a quarter longer than in one, and more (`benchmarks/chunks.py`, `results/h200/distributed/chunks.json`).
"""

from __future__ import annotations

from longca.manifests import Problem
from longca.masks import Form

__all__ = ["GATHER_CHUNKS", "ULYSSES_CHUNKS", "chunk_count"]

#: The most chunks of heads of ulysses, and of ring_all_gather.
ULYSSES_CHUNKS, GATHER_CHUNKS = 2, 4


def chunk_count(problem: Problem, heads_kv: int, most: int, nccl: bool) -> int:
    """How many chunks: whole groups of GQA each, and as many on all ranks.

    Args:
        problem: What is asked of all ranks together.
        heads_kv: KV heads of a rank's step.
        most: No more than so many.
        nccl: Whether NCCL moves them.
    """
    if nccl and problem.concrete_mask.admits(Form.FULL):
        return 1
    return max(count for count in range(1, most + 1) if heads_kv % count == 0)
