"""The tiles of block-sparse masks, the unit of FlexAttention's lists. Torch-free."""

from longca.masks import BlockSparseMask

__all__ = ["LARGE", "SMALL", "tile_size"]

#: Tokens of a tile of queries and of keys. FlexAttention is made for this size.
LARGE = 128

#: Tokens of a tile if the blocks are not whole tiles of 128.
SMALL = 64


def tile_size(mask: BlockSparseMask) -> int:
    """Tokens of a tile: 128 if each tile lies within one block, else 64.

    Blocks of 64 are tiles of 64, and no hidden block is computed. For all other blocks, smaller tiles touch fewer
    hidden pairs. A tile of 128 is visited if any of its four blocks of 64 is kept. If each is kept with probability
    one half, that is fifteen times of sixteen.
    """
    return LARGE if mask.block_size is not None and mask.block_size % LARGE == 0 else SMALL
