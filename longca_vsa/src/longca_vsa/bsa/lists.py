"""Lists of the columns that each block of rows sees, made on the device from the mask's bits.

A step of a kernel takes 16 to 128 columns. If blocks have as many columns as a step or more, a list has *runs*:
neighbouring blocks that are kept, as (first, one past the last). At half kept, runs take the same memory as a list of
their blocks, and at most twice as much if few blocks are kept. A step begins at the begin of a run. So blocks of all
sizes are walked alike, and only the last step of a run has unused columns. Blocks of 16 or 32 tokens, with fewer
columns than a step, are listed one by one, and a step gathers several.

Lists lie one after another. In a rectangle, one key block that every query sees would make every row as wide as the
sequence. Bounds count blocks, in 16 bits if these are enough. They count tokens if blocks differ in size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockSparseMask
from longca.metadata.kept_blocks import head_slices, unpacked
from longca_vsa.bsa.configs import piece_of, unit_of

__all__ = ["Kept", "Lists", "make_lists"]

_SHORT = 2**16  # numbers that 16 bits tell apart
#: Blocks of several heads that are looked at together. Finding entries takes several times their memory.
_TOGETHER = 2**22


@dataclass(frozen=True, eq=False)
class Kept:
    """The blocks of columns that each block of rows sees, for some heads at a time.

    Attributes:
        bits: A mask's bits, on the device: uint8 [mask heads, query blocks, bytes].
        num_keys: Key blocks.
        by_key: Whether rows are keys.
    """

    bits: Tensor
    num_keys: int
    by_key: bool = False

    @classmethod
    def of(cls, mask: BlockSparseMask, device: torch.device) -> Kept:
        """All heads of a mask, whose bits go to a device."""
        bits = torch.from_numpy(mask.bits.copy()).to(device)  # PyTorch wants memory it may write to
        return cls(bits, len(mask.k_bounds) - 1)

    @property
    def num_rows(self) -> int:
        """Blocks of rows."""
        return self.num_keys if self.by_key else self.bits.shape[1]

    def heads(self, some: slice) -> Tensor:
        """The kept blocks of some mask heads, head after head: bool [heads · rows, columns]."""
        kept = unpacked(self.bits[some], self.num_keys)
        return (kept.mT if self.by_key else kept).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class Lists:
    """The lists of all blocks of rows, by mask head and block.

    Attributes:
        entries: Runs [entries + 1, 2] or blocks [entries + 1], uint16 or int32. Those of a row ascend. The last entry
            belongs to no row, for programs without entries.
        offsets: The begin of each row's entries: int64 [mask heads · rows + 1].
        steps: The steps that each row takes, by the columns a step: int32 [mask heads, rows].
        piece: Tokens a block if entries are blocks, 0 if they are runs.
        unit: Tokens a unit of a run's bounds.
        length: Columns of the mask.
    """

    entries: Tensor
    offsets: Tensor
    steps: dict[int, Tensor]
    piece: int
    unit: int
    length: int

    @property
    def num_rows(self) -> int:
        """Blocks of rows."""
        return next(iter(self.steps.values())).shape[1]

    def is_exact(self, step: int) -> bool:
        """Whether every run is of whole steps, so that no column needs to be masked."""
        return not self.piece and self.unit % step == 0 and self.length % step == 0


class _Found(NamedTuple):
    """Entries of some rows, in their order: their stored form, their rows and their tokens."""

    entries: Tensor
    rows: Tensor
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class _Columns:
    """Blocks of columns, on the device."""

    bounds: Tensor
    unit: int
    dtype: torch.dtype

    @staticmethod
    def make(bounds: NDArray[np.int64], device: torch.device) -> _Columns:
        unit = unit_of(bounds)
        is_short = unit is not None and len(bounds) <= _SHORT
        return _Columns(torch.from_numpy(bounds).to(device), unit or 1, torch.int16 if is_short else torch.int32)

    def runs(self, kept: Tensor) -> _Found:
        """The runs of kept blocks of each row [rows, columns]."""
        edges = torch.diff(torch.nn.functional.pad(kept, (1, 1)).to(torch.int8))
        rows, first = (edges == 1).nonzero().unbind(1)
        last = (edges == -1).nonzero()[:, 1]
        tokens = self.bounds[last] - self.bounds[first]
        pairs = torch.stack([first, last], dim=1)
        return _Found((pairs if self.unit > 1 else self.bounds[pairs]).to(self.dtype), rows, tokens)

    def blocks(self, kept: Tensor) -> _Found:
        """The kept blocks themselves. All count as whole blocks, because a step takes a number of blocks, not of
        tokens."""
        rows, column = kept.nonzero().unbind(1)
        return _Found(column.to(self.dtype), rows, torch.full_like(column, self.unit))


def make_lists(kept: Kept, bounds: NDArray[np.int64], steps: set[int], *, gathers: bool = True) -> dict[int, Lists]:
    """Lists of the columns that each row sees.

    Args:
        kept: The mask's blocks.
        bounds: Bounds of the columns' blocks: [columns + 1].
        steps: Columns a step, of each kernel that walks these lists.
        gathers: Whether a step may gather several blocks. If not, all lists are of runs.

    Returns:
        The lists by their `piece`. Kernels with the same piece share one.
    """
    columns = _Columns.make(bounds, kept.bits.device)
    by_piece: dict[int, set[int]] = {}
    for step in steps:
        by_piece.setdefault(piece_of(bounds, step) if gathers else 0, set()).add(step)
    return {piece: _make(kept, columns, piece, sorted(some), int(bounds[-1])) for piece, some in by_piece.items()}


def _make(kept: Kept, columns: _Columns, piece: int, steps: list[int], length: int) -> Lists:
    heads, num_rows, device = len(kept.bits), kept.num_rows, kept.bits.device
    counts = torch.zeros((heads, num_rows), dtype=torch.int64, device=device)
    taken = {step: torch.zeros((heads, num_rows), dtype=torch.int32, device=device) for step in steps}
    parts = []
    for some in head_slices(heads, (num_rows, len(columns.bounds) - 1), _TOGETHER):
        found = (columns.blocks if piece else columns.runs)(kept.heads(some))
        count = counts[some].view(-1)
        count += torch.bincount(found.rows, minlength=len(count))
        for step in steps:
            if piece:
                taken[step][some] = -(-counts[some] // (step // piece))
            else:
                taken[step][some].view(-1).index_add_(0, found.rows, (-(-found.tokens // step)).int())
        parts.append(found.entries)
    parts.append(parts[0].new_zeros((1, *parts[0].shape[1:])))
    entries = torch.cat(parts)
    offsets = torch.nn.functional.pad(counts.flatten().cumsum(0), (1, 0))
    if entries.dtype == torch.int16:
        entries = entries.view(torch.uint16)
    return Lists(entries, offsets, taken, piece, columns.unit, length)
