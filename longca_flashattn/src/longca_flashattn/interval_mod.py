"""Interval masks inside FlashAttention-4's kernels for sm90: a `mask_mod` that costs one bit test an element.

FlashAttention-4 asks a `mask_mod` about every element of a partly visible tile. Asked naively, by comparing an index
with the interval's ends, two intervals take ten instructions an element, more than the softmax itself. But an
accumulator of `wgmma` gives each thread two tokens on one side of the tile and, on the other, the columns

    first + 8·(i // 2) + i % 2,    i = 0 … 31 (tiles of 128 tokens) or 15 (of 64)

so what a token sees of the thread's columns is one 32-bit word, made from the token's intervals in a few
instructions; element i is its bit i, which the compiler turns into predicates eight at a time (R2P, as
FlashAttention's own causal masking does).

The kernel's Python asks for the elements in a fixed order, so which column an element is follows from how many were
asked for before it. That order is FlashAttention's, not its contract: offers that use this name the exact version.

The tokens' intervals come by address, as a scalar, rather than as one of FlashAttention's `aux_tensors`: with those it
wraps every index by a division, lest a ragged edge read past the end. Here the table is padded instead.
"""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import Int32, Uint32, cute
from flash_attn.cute.utils import scalar_to_ssa, shl_u32

__all__ = ["IntervalMod"]

_TOKENS = 2  # tokens of the masked side that a thread's fragment has


class IntervalMod:
    """A `mask_mod`: whether the other side's token is in one of a token's intervals.

    It is made anew for every call of FlashAttention's functions, which compile once for all that hash alike.

    Args:
        intervals: Intervals a token.
        by_key: Whether keys have the intervals (of queries), as the backward's transposed tiles want; else queries
            have them (of keys).
        columns: Columns that a thread's fragment has on the other side: a quarter of the tile's tokens there.
    """

    def __init__(self, intervals: int, *, by_key: bool, columns: int) -> None:
        self._intervals, self._by_key, self._columns = intervals, by_key, columns
        self._asked = 0
        self._words: dict[int, Any] = {}
        self.__cute_hash__ = f"longca-intervals-{intervals}-{by_key}-{columns}"

    def __call__(
        self, batch: Any, head: Any, query: Any, key: Any, seqlen_info: Any, tensors: Any, scalars: tuple[Any, ...]
    ) -> Any:
        """One element, as FlashAttention's tracing asks for it; the scalar is the table's address."""
        token, column = self._position()
        if column == 0:
            owner, other = (key[0], query[0]) if self._by_key else (query[0], key[0])
            self._words[token] = self._word(scalars[0], owner, other)
        seen = self._words[token] & Uint32(1 << column)
        return scalar_to_ssa(seen != Uint32(0), cutlass.Boolean)

    def _position(self) -> tuple[int, int]:
        """Which of the thread's tokens and columns is asked for: queries outermost, as FlashAttention loops."""
        asked, self._asked = self._asked, self._asked + 1
        if self._by_key:
            column, token = divmod(asked % (_TOKENS * self._columns), _TOKENS)
        else:
            token, column = divmod(asked % (_TOKENS * self._columns), self._columns)
        return token, column

    def _word(self, table: Any, owner: Any, first: Any) -> Any:
        """The bits of the thread's columns that a token sees."""
        width = 2 * self._intervals
        pointer = cute.make_ptr(Int32, table, cute.AddressSpace.gmem, assumed_align=4 * width)
        bounds = cute.make_tensor(pointer + owner * width, cute.make_layout(width)).load()
        word = Uint32(0)
        for interval in range(self._intervals):
            word = word | (_from(bounds[2 * interval] - first) & ~_from(bounds[2 * interval + 1] - first))
        return word


def _from(bound: Any) -> Any:
    """The bits of the columns that are at `bound`, counted from the thread's first column, or after it."""
    bound = cutlass.max(bound, Int32(0))
    before = (bound >> 3) * 2 + cutlass.min(bound & 7, Int32(2))
    return shl_u32(Uint32(0xFFFFFFFF), Uint32(before))  # a shift by 32 or more leaves nothing
