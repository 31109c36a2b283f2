"""Bytes that FlashInfer's `plan` and kernels allocate, so that a plan is refused before it fails half-way.

The lists have one int32 for each key that a query block sees. FlashInfer makes them from several int64 arrays that are
alive at the same time:

- the start of each key's block in the list
- the key's place in the block
- the block's first key
- the temporaries of `repeat_interleave`

Source: `VariableBlockSparseAttentionWrapper.plan` in flashinfer/sparse.py, and `PrefillPlan` and `PrefillSM90Plan` in
include/flashinfer/attention/scheduler.cuh, of flashinfer-python 0.6.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca import Problem
from longca.masks import BlockSparseMask
from longca_flashinfer.limits import listed

if TYPE_CHECKING:
    import torch

__all__ = [
    "LENGTHS",
    "Sizes",
    "available_bytes",
    "check_memory",
    "sizes_of",
]

#: Number of rows of the wrapper's own buffer of lengths.
LENGTHS = 32768

_MIB = 2**20
_PER_KEY = 4 * 8  # bytes at the peak: four int64
_PER_KEPT_BLOCK = 9 * 8  # three coordinates from nonzero and their copies, lengths, bases and two sums
_PER_BLOCK = 1 + 1 + 8  # the bitmap, a copy without empty rows, and its product with the block sizes
_FA2_ROWS = 128  # queries of a tile, counted over all heads of a group
_FA2_FEWEST_ROWS = 16
_FA3_ROWS = 128  # queries of a tile, of one head
_FA3_SAME_SCHEDULE = 4096  # from this number of tiles a head on, all heads share one schedule


@dataclass(frozen=True)
class Sizes:
    """The sizes of a wrapper's lists and buffers.

    Attributes:
        rows: Query blocks of all KV heads. FlashInfer calls them requests.
        keys: Entries of the lists.
        int_bytes: Bytes of the schedules, which say where each tile is.
        float_bytes: Bytes of partial results of rows that are split among multiprocessors. fa2 splits rows if there
            are few.
        peak_bytes: The largest number of bytes that planning takes on the device, including the buffers above.
    """

    rows: int
    keys: int
    int_bytes: int
    float_bytes: int
    peak_bytes: int


def sizes_of(problem: Problem, backend: str, processors: int) -> Sizes:
    """Computes the sizes for a problem.

    Args:
        problem: The problem to plan. Its mask is block-sparse.
        backend: `fa2` or `fa3`.
        processors: Number of multiprocessors of the device.
    """
    mask, heads_kv = problem.concrete_mask, problem.num_heads_kv
    assert isinstance(mask, BlockSparseMask), "the offers are of block-sparse masks"
    rows, (blocks, keys) = heads_kv * (len(mask.q_bounds) - 1), listed(mask, heads_kv)
    int_bytes, float_bytes = _int_bytes(problem, backend, rows), _float_bytes(problem, backend, rows, processors)
    peak = _PER_KEY * keys + _PER_KEPT_BLOCK * blocks + _PER_BLOCK * rows * (len(mask.k_bounds) - 1)
    return Sizes(rows, keys, int_bytes, float_bytes, peak + int_bytes + float_bytes)


def _schedule_bytes(problem: Problem, backend: str, rows: int) -> int:
    """Upper bound of the schedule's bytes: three or seven int32 a tile, and the bounds of rows or tokens."""
    tokens, group = problem.concrete_mask.seqlen_q, problem.heads_q // problem.num_heads_kv
    if backend == "fa2":
        tiles = rows + tokens * problem.heads_q // _FA2_FEWEST_ROWS
        return 4 * (3 * tiles + rows)
    tiles = rows + tokens * problem.num_heads_kv // _FA3_ROWS
    return 4 * 7 * max(tiles, min(tiles, _FA3_SAME_SCHEDULE) * group)


def _split_bytes(problem: Problem, processors: int) -> int:
    """Bytes of outputs and sums in float32 for two tiles a multiprocessor, each as large as without packed heads."""
    group = problem.heads_q // problem.num_heads_kv
    return 4 * group * 2 * processors * _FA2_ROWS * (problem.head_dim + 1) + _MIB


def available_bytes(device: torch.device) -> int:
    """Bytes that an allocation can have: the device's free memory and PyTorch's unused reserve."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def check_memory(sizes: Sizes, available: int) -> None:
    """Refuses a plan that does not fit in memory.

    Raises:
        OutOfMemoryError: The plan takes more bytes than are available.
    """
    import torch

    if sizes.peak_bytes > available:
        raise torch.OutOfMemoryError(
            f"FlashInfer's plan would allocate {sizes.peak_bytes / 2**30:.1f} GiB for lists of {sizes.keys} keys, and "
            f"{available / 2**30:.1f} GiB are free; take fewer tokens or heads, larger query blocks, or bsa"
        )


def _int_bytes(problem: Problem, backend: str, rows: int) -> int:
    return max(8 * _MIB, _schedule_bytes(problem, backend, rows) + _MIB)


def _float_bytes(problem: Problem, backend: str, rows: int, processors: int) -> int:
    return _split_bytes(problem, processors) if backend == "fa2" and rows <= 2 * processors else _MIB
