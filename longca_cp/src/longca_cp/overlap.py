"""Overlap: which transfers are under way while a kernel computes, and into how many chunks heads are split for that.

A collective of NCCL is a kernel, and takes multiprocessors from the one that it runs beside. Most kernels deal out
their tiles as multiprocessors come free, and lose no more than was taken. FlashAttention-3's forward of a full mask
deals them beforehand, by its source: what was to run on a multiprocessor that is taken waits until the transfer is
done, which waits for other ranks. That this is the reason is no measurement. On two and on four H200s such a forward of
ulysses took a fifth to two fifths longer in two chunks than in one (`benchmarks/overlap.py`,
`results/h200/distributed/overlap.json` and `overlap-two.json`). A ring of two took less with its one transfer beside
the step than before it; of longer rings that was not measured.
"""

from __future__ import annotations

from longca.manifests import Problem
from longca.masks import Form

__all__ = ["GATHER_CHUNKS", "ULYSSES_CHUNKS", "chunk_count", "is_beside"]

#: The most chunks of heads of ulysses, and of ring_all_gather.
ULYSSES_CHUNKS, GATHER_CHUNKS = 2, 4


def is_beside(problem: Problem, nccl: bool) -> bool:
    """Whether a transfer is to be under way while the forward of a problem is computed, and not to be done before.

    Args:
        problem: What is computed.
        nccl: Whether NCCL moves it.
    """
    return not (nccl and problem.concrete_mask.admits(Form.FULL))


def chunk_count(problem: Problem, heads_kv: int, most: int, nccl: bool) -> int:
    """Into how many chunks heads are split, so that one travels while another is computed.

    They are whole groups of GQA each, and as many on all ranks.

    Args:
        problem: What is asked of all ranks together.
        heads_kv: KV heads of a rank's step.
        most: No more than so many.
        nccl: Whether NCCL moves them.
    """
    if not is_beside(problem, nccl):
        return 1
    return max(count for count in range(1, most + 1) if heads_kv % count == 0)
