"""Block-sparse masks as pages of keys: for each block of queries, the pages that it reads.

A page is a run of keys of one size. Each block of keys is a whole number of pages, because the page size divides every
bound of the key blocks. The last page of the sequence may be shorter. Pages ascend, so a row that reads the short page
reads it last, and the row's number of keys ends within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.kernels.sizes import block_sparse
from longca.manifests import Problem
from longca.masks import BlockSparseMask

__all__ = ["JointPages", "Pages", "joint_pages", "make_pages"]

#: FlashAttention-3 loads pages of other sizes by another path, which reads whole pages even past the end of the keys.
_LARGEST_PAGE = 128
#: Queries and heads of a tile of FlashAttention-3.
_TILE = 128
_UNIT = 64
#: The most bytes of the log-sum-exp of a joint call, which is as wide as its units.
_MOST_LSE = 2**28


def page_size(mask: BlockSparseMask) -> int:
    """Keys of a page: the largest divisor of 128 and of all bounds of key blocks but the last, at most all keys."""
    size = gcd(_LARGEST_PAGE, *map(int, mask.k_bounds[:-1]))
    while size > max(1, mask.seqlen_k):
        size //= 2
    return size


def pages_a_row(mask: BlockSparseMask) -> int:
    """The most pages that a block of queries reads, and at least 1."""
    return max(1, -(-int(mask.keys_by_block.max(initial=0)) // page_size(mask)))


def unit_size(mask: BlockSparseMask, group: int) -> int:
    """Queries of a unit of a joint call: a divisor of all query blocks."""
    return gcd(max(_UNIT, _TILE // group), *map(int, mask.q_bounds))


def runs_jointly(problem: Problem) -> bool:
    """Whether one call computes all KV heads.

    Units must fill tiles, or be whole blocks. Long sequences have a call for each KV head, because the log-sum-exp of a
    joint call would be large.
    """
    mask, heads_kv = block_sparse(problem), problem.num_heads_kv
    if mask.heads != heads_kv or heads_kv == 1 or not mask.seqlen_q:
        return False
    group = problem.heads_q // heads_kv
    unit = unit_size(mask, group)
    fills = unit * group % _TILE == 0 or bool((np.diff(mask.q_bounds) == unit).all())
    return fills and joint_lse_bytes(problem) <= _MOST_LSE


def joint_lse_bytes(problem: Problem) -> int:
    """Bytes of the log-sum-exp that a joint call returns: float32 [unit, flattened queries up to the last unit]."""
    mask = block_sparse(problem)
    unit = unit_size(mask, problem.heads_q // problem.num_heads_kv)
    return 4 * unit * (mask.seqlen_q - unit + 1) * problem.heads_q


@dataclass(frozen=True, eq=False)
class Pages:
    """The pages of each block of queries.

    Attributes:
        size: Keys of a page.
        table: Pages of each row in ascending order, then zeros: int32 [mask heads, query blocks, most pages of a row].
        keys: Keys of each row: int32 [mask heads, query blocks].
        cu_seqlens_q: Bounds of the query blocks: int32 [query blocks + 1].
        longest: Queries of the longest block.
    """

    size: int
    table: Tensor
    keys: Tensor
    cu_seqlens_q: Tensor
    longest: int


@dataclass(frozen=True, eq=False)
class JointPages:
    """The pages of all KV heads for one call. A row is a unit of queries under one KV head, KV heads first.

    Attributes:
        unit: Queries of a unit.
        table: Pages of each row, as page · page size · KV heads + KV head: int32 [KV heads · units, most pages of a
            row].
        keys: Keys of each row: int32 [KV heads · units].
        first: First row of the flattened queries [Tq · Hq, D] of each row, and one past the last row: int32 [KV heads ·
            units + 1].
        group: Query heads of a KV head, for each row: int32 [KV heads · units].
    """

    unit: int
    table: Tensor
    keys: Tensor
    first: Tensor
    group: Tensor


def make_pages(mask: BlockSparseMask, device: torch.device) -> Pages:
    """The pages of a mask, on a device."""
    size = page_size(mask)
    width = pages_a_row(mask)
    first = torch.from_numpy(mask.k_bounds[:-1] // size).to(device)
    count = torch.from_numpy(-(-np.diff(mask.k_bounds) // size)).to(device)
    rows = [_head(torch.from_numpy(mask.kept(head)).to(device), first, count, width) for head in range(mask.heads)]
    sizes = np.diff(mask.q_bounds)
    return Pages(
        size, torch.stack(rows), _int32(mask.keys_by_block, device), _int32(mask.q_bounds, device), int(sizes.max())
    )


def _head(kept: Tensor, first: Tensor, count: Tensor, width: int) -> Tensor:
    """The pages of one mask head.

    Args:
        kept: Whether each row sees each key block: bool [rows, key blocks].
        first: First page of each key block: int64 [key blocks].
        count: Pages of each key block: int64 [key blocks].
        width: Columns of the result.
    """
    rows, blocks = kept.nonzero().unbind(1)
    lengths = count[blocks]
    before = lengths.cumsum(0) - lengths
    pages = (first[blocks] - before).repeat_interleave(lengths)
    pages += torch.arange(len(pages), device=kept.device)
    used = torch.zeros(len(kept), dtype=torch.int64, device=kept.device).index_add_(0, rows, lengths)
    table = torch.zeros((len(kept), width), dtype=torch.int32, device=kept.device)
    # Entries of a row stand side by side in both, and rows come one after the other.
    table[torch.arange(width, device=kept.device) < used[:, None]] = pages.int()
    return table


def joint_pages(mask: BlockSparseMask, pages: Pages, heads_q: int) -> JointPages:
    """The pages of a mask that has one head for each KV head, for one call."""
    heads_kv, device = mask.heads, pages.table.device
    group = heads_q // heads_kv
    unit = unit_size(mask, group)
    repeats = torch.from_numpy(np.diff(mask.q_bounds) // unit).to(device)
    heads = torch.arange(heads_kv, dtype=torch.int32, device=device)
    table = pages.table * (pages.size * heads_kv) + heads[:, None, None]
    units = mask.seqlen_q // unit
    first = np.arange(heads_kv)[:, None] * group + np.arange(units) * (unit * heads_q)
    last = (units - 1) * unit * heads_q + heads_q
    return JointPages(
        unit,
        table.repeat_interleave(repeats, dim=1).flatten(0, 1),
        pages.keys.repeat_interleave(repeats, dim=1).flatten(),
        _int32(np.append(first, last), device),
        torch.full((heads_kv * units,), group, dtype=torch.int32, device=device),
    )


def _int32(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32)).to(device)
