"""Tables of block-sparse masks for FlashAttention-4's kernels: the bits of blocks, and the block of each token.

Blocks of 16, 32 and 64 tokens never straddle a tile, so the bits of one byte describe a token's row within a tile. For
other block sizes the tables also have maps from tokens to blocks, and the bounds of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.masks import BlockSparseMask
from longca.metadata.kept_blocks import unpacked

__all__ = ["BlockTable", "block_table"]

_TILE = 128  # tables reach to the last tile's edge
_ALIGNED = (16, 32, 64)  # at most eight of these blocks fit into a tile


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The blocks of the other side that each block sees, or that see it.

    Attributes:
        bits: One bit for each block, from the lowest bit of a byte on: uint8 [mask heads, blocks, bytes].
        size: Tokens of a block if it is 16, 32 or 64. Else 0, and the maps below are needed.
        owners: Block of each token: int32 [tokens, up to the last tile's edge]. None if `size` is not 0.
        others: Block of each token of the other side, in the same form.
        bounds: Bounds of the other side's blocks: int32 [blocks + 1]. None if `size` is not 0.
    """

    bits: Tensor
    size: int
    owners: Tensor | None = None
    others: Tensor | None = None
    bounds: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the table that are not None."""
        return tuple(x for x in (self.bits, self.owners, self.others, self.bounds) if x is not None)


def block_table(mask: BlockSparseMask, device: torch.device, *, by_key: bool) -> BlockTable:
    """Makes the table of a mask on a device.

    Args:
        mask: The mask.
        device: The device of the table.
        by_key: True lists the query blocks that see each key block. False lists the key blocks that each query block
            sees.
    """
    own, other = (mask.k_bounds, mask.q_bounds) if by_key else (mask.q_bounds, mask.k_bounds)
    if mask.block_size in _ALIGNED:
        edge = -(-int(own[-1]) // _TILE) * _TILE
        return BlockTable(_bits(mask, device, by_key, edge // mask.block_size), mask.block_size)
    owners, others = (torch.from_numpy(_blocks_of_tokens(bounds)).to(device) for bounds in (own, other))
    bounds = torch.from_numpy(other.astype(np.int32)).to(device)
    return BlockTable(_bits(mask, device, by_key, len(own) - 1), 0, owners, others, bounds)


def _bits(mask: BlockSparseMask, device: torch.device, by_key: bool, rows: int) -> Tensor:
    """The bits of all heads, one head after the other, with rows of zeros after each head's last block."""
    columns = len(mask.q_bounds if by_key else mask.k_bounds) - 1
    made = torch.zeros((mask.heads, rows, -(-columns // 8)), dtype=torch.uint8, device=device)
    for head, into in zip(mask.bits, made, strict=True):
        kept = unpacked(torch.from_numpy(head.copy()).to(device), len(mask.k_bounds) - 1)
        kept = kept.mT if by_key else kept
        into[: len(kept)] = _packed(kept)
    return made


def _packed(kept: Tensor) -> Tensor:
    """bool [rows, columns] → uint8 [rows, bytes], the first column in a byte's lowest bit."""
    whole = torch.nn.functional.pad(kept, (0, -kept.shape[1] % 8)).unflatten(1, (-1, 8))
    places = torch.arange(8, dtype=torch.uint8, device=kept.device)
    return (whole.to(torch.uint8) << places).sum(-1, dtype=torch.uint8)


def _blocks_of_tokens(bounds: NDArray[np.int64]) -> NDArray[np.int32]:
    """Block of each token. Tokens past the end, up to the last tile's edge, belong to the last block."""
    sizes = np.diff(bounds)
    sizes[-1:] += -int(bounds[-1]) % _TILE
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
