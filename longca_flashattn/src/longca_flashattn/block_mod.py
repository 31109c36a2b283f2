"""Block-sparse masks inside FlashAttention-4's kernels for sm90: each token's word is made from the bits of its block.

`fragment_mod` explains words. `fa4_blocks` explains the tables whose addresses the kernels receive.
"""

# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint8, Uint32, cute

from longca_flashattn.fragment_mod import FragmentMod, from_column

__all__ = ["AlignedBlockMod", "AnyBlockMod"]


class AlignedBlockMod(FragmentMod):
    """A `mask_mod` for blocks of 16, 32 or 64 tokens, which divide a tile.

    A few bits of one byte give the blocks of a tile that a token sees. A thread's columns are spread evenly over the
    tile, in the same way for every thread. So its word is these bits, each repeated once for every column of its block.

    The scalars are the address of the bits, the bytes of a row and the rows of a head.

    Args:
        size: Tokens of a block.
        sharing: Number of query heads that share a mask.
        by_key: True if rows are key blocks with a bit for each query block. False if rows are query blocks.
        columns: Number of columns of a thread's fragment on the other side.
    """

    def __init__(self, size: int, sharing: int, *, by_key: bool, columns: int) -> None:
        super().__init__(f"blocks-{size}-{sharing}", by_key=by_key, columns=columns)
        self._size, self._sharing, self._tile = size, sharing, 4 * columns

    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The bits of the columns whose blocks the token's block sees. See `FragmentMod.word`."""
        row = _row(scalars, head // self._sharing, owner // self._size)
        count = self._tile // self._size
        block = first // self._tile * count
        byte = _load(Uint8, row + Int64(block >> 3))
        bits = (Uint32(byte) >> Uint32(block & 7)) & Uint32((1 << count) - 1)
        return _spread(bits, count, self._columns // count)


class AnyBlockMod(FragmentMod):
    """A `mask_mod` for blocks of any sizes. A token's word is the union of the words of its row's blocks in the tile.

    The scalars are the address of the bits, the bytes of a row, the rows of a head, and the addresses of the owners'
    map, of the others' map and of the others' bounds.

    Args:
        sharing: Number of query heads that share a mask.
        by_key: True if rows are key blocks with a bit for each query block. False if rows are query blocks.
        columns: Number of columns of a thread's fragment on the other side.
    """

    def __init__(self, sharing: int, *, by_key: bool, columns: int) -> None:
        super().__init__(f"any-blocks-{sharing}", by_key=by_key, columns=columns)
        self._sharing, self._tile = sharing, 4 * columns

    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The bits of the columns whose blocks the token's block sees. See `FragmentMod.word`."""
        owners, others, bounds = scalars[3:]
        row = _row(scalars, head // self._sharing, _integer(owners, owner))
        left = first // self._tile * self._tile
        start, last = _integer(others, left), _integer(others, left + self._tile - 1)
        return _union(row, bounds, start, last, first)


@cute.jit
def _union(row: Int64, bounds: Int64, start: Int32, last: Int32, first: Int32) -> Uint32:
    """The bits of the columns that lie in the row's kept blocks from `start` to `last`."""
    word = Uint32(0)
    reached = from_column(_integer(bounds, start) - first)
    for block in cutlass.range(start, last + 1, unroll=1):
        after = from_column(_integer(bounds, block + 1) - first)
        kept = (Uint32(_load(Uint8, row + Int64(block >> 3))) >> Uint32(block & 7)) & Uint32(1)
        word = word | (reached & ~after & (Uint32(0) - kept))
        reached = after
    return word


def _row(scalars: tuple[Any, ...], head: Any, block: Any) -> Any:
    """The address of a block's bits, in 64 bits, because the bits of many heads of small blocks exceed 2 GiB."""
    bits, row_bytes, rows = scalars[:3]
    return bits + (Int64(head) * Int64(rows) + Int64(block)) * Int64(row_bytes)


def _load(dtype: Any, address: Any) -> Any:
    """Loads one number from memory."""
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=dtype.width // 8)
    return cute.make_tensor(pointer, cute.make_layout(1))[0]


def _integer(table: Any, index: Any) -> Any:
    return _load(Int32, table + Int64(index) * Int64(4))


def _spread(bits: Any, count: int, times: int) -> Any:
    """The lowest `count` bits of a word, each repeated `times` times. Both numbers are powers of two."""
    half = count // 2
    while half:
        # Each group of 2 · half bits is split: its upper half moves to the position where its bits will be repeated.
        stays = sum(((1 << half) - 1) << (group * half * times) for group in range(count // half))
        bits = (bits | (bits << Uint32(half * (times - 1)))) & Uint32(stays)
        half //= 2
    return bits * Uint32((1 << times) - 1)
