"""The shapes of bsa_gluon's tiles and steps. Torch-free."""

from __future__ import annotations

from longca.masks import BlockSparseMask

__all__ = ["PIECE", "ROWS", "WARPGROUP", "block_size"]

#: Rows of a tile: a query under one head each.
ROWS = 128
#: Rows of a warp group, which has one matrix instruction's rows.
WARPGROUP = 64
#: Keys that one copy brings.
PIECE = 64


def block_size(mask: BlockSparseMask) -> int:
    """Tokens of a mask's blocks."""
    assert mask.block_size is not None, "the offer has uniform blocks alone"
    return mask.block_size
