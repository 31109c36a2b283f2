"""What FlashInfer's `plan` will allocate, so that it is refused before it fails half-way; and what its kernels take.

Its lists have one int32 for each key that a query block sees. On the way there it makes several of int64, all alive at
once: where each key's block begins in the list, its place in the block, the block's first key, and what
`repeat_interleave` keeps meanwhile.

Source: `VariableBlockSparseAttentionWrapper.plan` in flashinfer/sparse.py, and `PrefillPlan` and `PrefillSM90Plan` in
include/flashinfer/attention/scheduler.cuh, of flashinfer-python 0.6.3. A test holds what manifests name against
results/h200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longca import Problem
from longca.kernels.sizes import Tensors, block_sparse, empty_bytes
from longca.masks import BlockSparseMask, Form
from longca_flashinfer.limits import listed

if TYPE_CHECKING:
    import torch

__all__ = [
    "LENGTHS",
    "Sizes",
    "available_bytes",
    "check_memory",
    "fa2_plan",
    "fa2_workspace",
    "fa3_plan",
    "fa3_workspace",
    "sizes_of",
]

#: Rows that the wrapper's own buffer of lengths is for.
LENGTHS = 32768

_MIB = 2**20
_PER_KEY = 4 * 8  # bytes at the peak: four int64
_PER_KEPT_BLOCK = 9 * 8  # three coordinates as nonzero finds them and copies of them, lengths, bases and two sums
_PER_BLOCK = 1 + 1 + 8  # the bitmap, a copy without empty rows, and its product with the block sizes
_FA2_ROWS = 128  # queries of a tile, of all heads of a group together
_FA2_FEWEST_ROWS = 16
_FA3_ROWS = 128  # of one head
_PROCESSORS = 132  # of an H100 or H200, for what is said without a device
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
    int_bytes, float_bytes = _int_bytes(problem, backend, rows), _float_bytes(problem, backend, rows, processors)
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
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def check_memory(sizes: Sizes, available: int) -> None:
    """Refuses to plan what would not fit.

    Raises:
        OutOfMemoryError: It takes more than is available.
    """
    import torch

    if sizes.peak_bytes > available:
        raise torch.OutOfMemoryError(
            f"FlashInfer's plan would allocate {sizes.peak_bytes / 2**30:.1f} GiB for lists of {sizes.keys} keys, and "
            f"{available / 2**30:.1f} GiB are free; take fewer tokens or heads, larger query blocks, or bsa"
        )


def fa2_workspace(problem: Problem, form: Form) -> int:
    """Copies of q, k and v, heads first, of the output where heads share keys; and the buffer of split rows."""
    return _workspace(problem, "fa2")


def fa3_workspace(problem: Problem, form: Form) -> int:
    """As `fa2_workspace`."""
    return _workspace(problem, "fa3")


def fa2_plan(problem: Problem, form: Form) -> int:
    """A number for every key that a query block sees, and the schedule."""
    return _plan(problem, "fa2")


def fa3_plan(problem: Problem, form: Form) -> int:
    """As `fa2_plan`."""
    return _plan(problem, "fa3")


def _workspace(problem: Problem, backend: str) -> int:
    tensors = Tensors.of(problem)
    copies = tensors.q + 2 * tensors.k + (tensors.q if problem.is_gqa else 0)
    return copies + _float_bytes(problem, backend, _rows(problem), _PROCESSORS)


def _plan(problem: Problem, backend: str) -> int:
    mask, rows = block_sparse(problem), _rows(problem)
    lists = 4 * listed(mask, problem.num_heads_kv).keys + 4 * (3 * rows + 2)
    blind = empty_bytes(mask) * problem.heads_q // mask.heads
    return lists + _int_bytes(problem, backend, rows) + 4 * max(LENGTHS, rows) + blind


def _rows(problem: Problem) -> int:
    """Query blocks of all KV heads."""
    return problem.num_heads_kv * (len(block_sparse(problem).q_bounds) - 1)


def _int_bytes(problem: Problem, backend: str, rows: int) -> int:
    return max(8 * _MIB, _schedule_bytes(problem, backend, rows) + _MIB)


def _float_bytes(problem: Problem, backend: str, rows: int, processors: int) -> int:
    return _split_bytes(problem, processors) if backend == "fa2" and rows <= 2 * processors else _MIB
