"""Block-sparse masks inside FlashAttention-4's kernels for sm90: a token's word made from the bits of its block.

`fragment_mod` says what a word is, `block_tables` what lies at the addresses that the kernels are told.
"""

# mypy: allow-untyped-decorators

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint8, Uint32, cute

from longca_flashattn.fragment_mod import FragmentMod, from_column

__all__ = ["AlignedBlockMod", "AnyBlockMod"]


class AlignedBlockMod(FragmentMod):
    """A `mask_mod` for blocks of 16, 32 or 64 tokens, which are whole parts of a tile.

    What a token sees of a tile is a few bits of one byte. A thread's columns are spread over the tile alike for every
    thread, so its word is these bits, each as many times as a block has columns there.

    Its scalars are the bits' address, the bytes a row and the rows a head.

    Args:
        size: Tokens a block.
        sharing: Query heads that share a mask.
        by_key: Whether rows are key blocks, with a bit a query block; else the other way around.
        columns: Columns that a thread's fragment has on the other side.
    """

    def __init__(self, size: int, sharing: int, *, by_key: bool, columns: int) -> None:
        super().__init__(f"blocks-{size}-{sharing}", by_key=by_key, columns=columns)
        self._size, self._sharing, self._tile = size, sharing, 4 * columns

    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The columns in the blocks that the token's block sees; see `FragmentMod.word`."""
        row = _row(scalars, head // self._sharing, owner // self._size)
        count = self._tile // self._size
        block = first // self._tile * count
        byte = _load(Uint8, row + Int64(block >> 3))
        bits = (Uint32(byte) >> Uint32(block & 7)) & Uint32((1 << count) - 1)
        return _spread(bits, count, self._columns // count)


class AnyBlockMod(FragmentMod):
    """A `mask_mod` for blocks of any sizes: a token's word is the union of those of its row's blocks within the tile.

    Its scalars are the bits' address, the bytes a row, the rows a head, and the addresses of the owners' map, of the
    others' map and of the others' bounds.

    Args:
        sharing: Query heads that share a mask.
        by_key: Whether rows are key blocks, with a bit a query block; else the other way around.
        columns: Columns that a thread's fragment has on the other side.
    """

    def __init__(self, sharing: int, *, by_key: bool, columns: int) -> None:
        super().__init__(f"any-blocks-{sharing}", by_key=by_key, columns=columns)
        self._sharing, self._tile = sharing, 4 * columns

    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The columns in the blocks that the token's block sees; see `FragmentMod.word`."""
        owners, others, bounds = scalars[3:]
        row = _row(scalars, head // self._sharing, _integer(owners, owner))
        left = first // self._tile * self._tile
        start, last = _integer(others, left), _integer(others, left + self._tile - 1)
        return _union(row, bounds, start, last, first)


@cute.jit
def _union(row: Int64, bounds: Int64, start: Int32, last: Int32, first: Int32) -> Uint32:
    """The bits of the columns in those of the blocks `start` to `last` that a row has."""
    word = Uint32(0)
    reached = from_column(_integer(bounds, start) - first)
    for block in cutlass.range(start, last + 1, unroll=1):
        after = from_column(_integer(bounds, block + 1) - first)
        kept = (Uint32(_load(Uint8, row + Int64(block >> 3))) >> Uint32(block & 7)) & Uint32(1)
        word = word | (reached & ~after & (Uint32(0) - kept))
        reached = after
    return word


def _row(scalars: tuple[Any, ...], head: Any, block: Any) -> Any:
    """The address of a block's bits, in 64 bits: many heads of small blocks are more than 2 GiB."""
    bits, row_bytes, rows = scalars[:3]
    return bits + (Int64(head) * Int64(rows) + Int64(block)) * Int64(row_bytes)


def _load(dtype: Any, address: Any) -> Any:
    """One number from memory."""
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=dtype.width // 8)
    return cute.make_tensor(pointer, cute.make_layout(1))[0]


def _integer(table: Any, index: Any) -> Any:
    return _load(Int32, table + Int64(index) * Int64(4))


def _spread(bits: Any, count: int, times: int) -> Any:
    """The lowest bits of a word, so many of them, each repeated so many times; counts and times are powers of two."""
    half = count // 2
    while half:
        # Groups of 2 · half bits come apart: the upper half of each moves to where its bits will be repeated.
        stays = sum(((1 << half) - 1) << (group * half * times) for group in range(count // half))
        bits = (bits | (bits << Uint32(half * (times - 1)))) & Uint32(stays)
        half //= 2
    return bits * Uint32((1 << times) - 1)
