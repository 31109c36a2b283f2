"""Block-sparse masks as pages of keys: for each block of queries, the pages that it reads.

A page is a run of keys of one size. Each block of keys is a whole number of pages, because the page size divides every
bound of the key blocks. The last page of the sequence may be shorter. Pages ascend, so a row that reads the short page
reads it last, and the row's number of keys ends within it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockSparseMask
from longca_flashattn.page_sizes import page_size, pages_a_row, unit_size

__all__ = ["JointPages", "Pages", "joint_pages", "make_pages"]


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
    """The pages of a mask that has one head for each KV head, for one call.

    Args:
        mask: The mask.
        pages: The pages of the mask.
        heads_q: Number of query heads.
    """
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
