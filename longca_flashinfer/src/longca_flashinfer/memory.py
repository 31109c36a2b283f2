"""What FlashInfer's `plan` will allocate, so that it is refused before it fails half-way.

Its lists have one int32 for each key that a query block sees. On the way there it makes several of int64, all alive at
once: where each key's block begins in the list, its place in the block, the block's first key, and what
`repeat_interleave` keeps meanwhile.

Source: `VariableBlockSparseAttentionWrapper.plan` in flashinfer/sparse.py, and `PrefillPlan` and `PrefillSM90Plan` in
include/flashinfer/attention/scheduler.cuh, of flashinfer-python 0.6.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from longca import Problem
from longca.masks import BlockSparseMask
from longca_flashinfer.limits import listed

__all__ = ["Sizes", "available_bytes", "check_memory", "sizes_of"]

_MIB = 2**20
_PER_KEY = 4 * 8  # bytes at the peak: four int64
_PER_KEPT_BLOCK = 9 * 8  # three coordinates as nonzero finds them and copies of them, lengths, bases and two sums
_PER_BLOCK = 1 + 1 + 8  # the bitmap, a copy without empty rows, and its product with the block sizes
_FA2_ROWS = 128  # queries of a tile, of all heads of a group together
_FA2_FEWEST_ROWS = 16
_FA3_ROWS = 128  # of one head
_FA3_SAME_SCHEDULE = 4096  # tiles a head from which on all heads share one schedule


@dataclass(frozen=True)
class Sizes:
    """Sizes of what a wrapper works with.

    Attributes:
        rows: Query blocks of all KV heads: what FlashInfer calls requests.
        keys: Entries of its lists.
        int_bytes: Schedules: which tile is where.
        float_bytes: Partial results of rows that are split among multiprocessors; fa2 splits where there are few.
        peak_bytes: The most that planning takes on the device, with the buffers above.
    """

    rows: int
    keys: int
    int_bytes: int
    float_bytes: int
    peak_bytes: int


def sizes_of(problem: Problem, backend: str, processors: int) -> Sizes:
    """Sizes for a problem.

    Args:
        problem: What is planned; its mask is block-sparse.
        backend: `fa2` or `fa3`.
        processors: Multiprocessors of the device.
    """
    mask, heads_kv = problem.concrete_mask, problem.num_heads_kv
    assert isinstance(mask, BlockSparseMask), "the offers are of block-sparse masks"
    rows, (blocks, keys) = heads_kv * (len(mask.q_bounds) - 1), listed(mask, heads_kv)
    int_bytes = max(8 * _MIB, _schedule_bytes(problem, backend, rows) + _MIB)
    float_bytes = _split_bytes(problem, processors) if backend == "fa2" and rows <= 2 * processors else _MIB
    peak = _PER_KEY * keys + _PER_KEPT_BLOCK * blocks + _PER_BLOCK * rows * (len(mask.k_bounds) - 1)
    return Sizes(rows, keys, int_bytes, float_bytes, peak + int_bytes + float_bytes)


def _schedule_bytes(problem: Problem, backend: str, rows: int) -> int:
    """At most: three or seven int32 a tile, and the bounds of rows or tokens."""
    tokens, group = problem.concrete_mask.seqlen_q, problem.heads_q // problem.num_heads_kv
    if backend == "fa2":
        tiles = rows + tokens * problem.heads_q // _FA2_FEWEST_ROWS
        return 4 * (3 * tiles + rows)
    tiles = rows + tokens * problem.num_heads_kv // _FA3_ROWS
    return 4 * 7 * max(tiles, min(tiles, _FA3_SAME_SCHEDULE) * group)


def _split_bytes(problem: Problem, processors: int) -> int:
    """Outputs and sums in float32 for two tiles a multiprocessor, each as large as if no heads were packed in it."""
    group = problem.heads_q // problem.num_heads_kv
    return 4 * group * 2 * processors * _FA2_ROWS * (problem.head_dim + 1) + _MIB


def available_bytes(device: torch.device) -> int:
    """Memory that an allocation can have: what the device has free, and what PyTorch holds without use."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def check_memory(sizes: Sizes, available: int) -> None:
    """Refuses to plan what would not fit.

    Raises:
        OutOfMemoryError: It takes more than is available.
    """
    if sizes.peak_bytes > available:
        raise torch.OutOfMemoryError(
            f"FlashInfer's plan would allocate {sizes.peak_bytes / 2**30:.1f} GiB for lists of {sizes.keys} keys, and "
            f"{available / 2**30:.1f} GiB are free; take fewer tokens or heads, larger query blocks, or bsa"
        )
