"""How block-sparse masks are tiled: what FlexAttention's lists count in. Without torch, for the hook."""

from longca.masks import BlockSparseMask

__all__ = ["LARGE", "SMALL", "list_entries", "tile_size"]

#: Tokens a tile, of queries and of keys, for which FlexAttention is made.
LARGE = 128

#: Tokens a tile where the blocks are not whole tiles of 128.
SMALL = 64


def tile_size(mask: BlockSparseMask) -> int:
    """Tokens a tile: 128 where each lies within one block, else 64.

    Blocks of 64 are tiles of 64, and nothing is computed in vain; of any other blocks smaller tiles touch fewer that
    are not kept. A tile of 128 would be visited for any of its blocks: of four that are each kept with a probability
    of a half, it is visited fifteen times of sixteen.
    """
    return LARGE if mask.block_size is not None and mask.block_size % LARGE == 0 else SMALL


def list_entries(mask: BlockSparseMask, heads_q: int) -> int:
    """The most entries that a mask's lists may have, where each head sees every tile."""
    tile = tile_size(mask)
    return (1 if mask.heads == 1 else heads_q) * -(-mask.seqlen_q // tile) * -(-mask.seqlen_k // tile)
