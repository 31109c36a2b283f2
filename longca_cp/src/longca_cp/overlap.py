"""Overlap: the transfers that run beside a kernel, and the chunks of heads that make this possible.

On two and on four H200s, FlashAttention-3's forward of a full mask under ulysses took a fifth to two fifths longer in
two chunks than in one (`benchmarks/overlap.py`, `results/h200/distributed/overlap.json` and `overlap-two.json`). So a
full mask is not split. A ring of two was faster with its one transfer beside the step than before it. Longer rings were
not measured.

The probable reason is that a collective of NCCL is a kernel, which takes multiprocessors from its neighbour. Most
kernels deal out their tiles as multiprocessors become free, and lose only these multiprocessors. FlashAttention-3's
forward of a full mask deals them beforehand. Tiles of a busy multiprocessor then wait for the transfer, which waits for
other ranks.

Copy engines take no multiprocessors, so rings with a link run every transfer beside the step. ulysses keeps the number
of its chunks. In a prototype of two H200s and copy engines, the forward of a full mask reached 0.945 of one GPU in one
chunk and 0.907 in two at 16 K tokens, and that of a causal mask 0.805 and 0.823.
"""

from __future__ import annotations

from longca.manifests import Problem
from longca.masks import Form

__all__ = ["GATHER_CHUNKS", "SLOTS", "ULYSSES_CHUNKS", "chunk_count", "is_beside"]

#: The most chunks of heads of ulysses, and of ring_all_gather.
ULYSSES_CHUNKS, GATHER_CHUNKS = 2, 4

#: The most slots of a window, so that one push lands while the one before is read.
SLOTS = 2


def is_beside(problem: Problem, nccl: bool) -> bool:
    """Whether a transfer runs while the forward of a problem is computed, and not before it.

    Args:
        problem: The problem.
        nccl: Whether NCCL moves the tensors.
    """
    return not (nccl and problem.concrete_mask.admits(Form.FULL))


def chunk_count(problem: Problem, heads_kv: int, most: int, nccl: bool) -> int:
    """Number of chunks of heads, so that one travels while another is computed.

    Chunks are whole groups of GQA. All ranks have the same number of chunks.

    Args:
        problem: The problem of all ranks together.
        heads_kv: KV heads of a rank's step.
        most: The largest number of chunks.
        nccl: Whether NCCL moves the tensors.
    """
    if not is_beside(problem, nccl):
        return 1
    return max(count for count in range(1, most + 1) if heads_kv % count == 0)
