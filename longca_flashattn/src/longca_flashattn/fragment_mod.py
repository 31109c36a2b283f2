"""Masks inside FlashAttention-4's kernels for sm90: a `mask_mod` that costs one bit test an element.

FlashAttention-4 asks a `mask_mod` about every element of a partly visible tile. Asked naively, by comparing an index
with an interval's ends, two intervals take ten instructions an element, more than the softmax itself. But an
accumulator of `wgmma` gives each thread two tokens on one side of the tile and, on the other, the columns

    first + 8·(i // 2) + i % 2,    i = 0 … 31 (tiles of 128 tokens) or 15 (of 64)

so what a token sees of the thread's columns is one 32-bit word, made in a few instructions; element i is its bit i,
which the compiler turns into predicates eight at a time (R2P, as FlashAttention's own causal masking does).

The kernel's Python asks for the elements in a fixed order, so which column an element is follows from how many were
asked for before it. That order is FlashAttention's, not its contract: offers that use this name the exact version.

What the words are made of comes by address, as a scalar, rather than as one of FlashAttention's `aux_tensors`: with
those it wraps every index by a division, lest a ragged edge read past the end. Here tables are padded instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import cutlass
from cutlass import Int32, Uint32
from flash_attn.cute.utils import scalar_to_ssa, shl_u32

__all__ = ["FragmentMod", "from_column"]

_TOKENS = 2  # tokens of the masked side that a thread's fragment has


class FragmentMod(ABC):
    """A `mask_mod` by words of bits.

    It is made anew for every call of FlashAttention's functions, which compile once for all that hash alike.

    Args:
        name: What tells the compiled kernels of one mod from those of another.
        by_key: Whether the words are keys' (of the queries that see them), as the backward's transposed tiles want;
            else they are queries' (of the keys that they see).
        columns: Columns that a thread's fragment has on the other side: a quarter of the tile's tokens there.
    """

    def __init__(self, name: str, *, by_key: bool, columns: int) -> None:
        self._by_key, self._columns = by_key, columns
        self._asked = 0
        self._words: dict[int, Any] = {}
        self.__cute_hash__ = f"longca-{name}-{by_key}-{columns}"

    def __call__(
        self, batch: Any, head: Any, query: Any, key: Any, seqlen_info: Any, tensors: Any, scalars: tuple[Any, ...]
    ) -> Any:
        """One element, as FlashAttention's tracing asks for it; the scalars are what the call was given."""
        token, column = self._position()
        if column == 0:
            owner, other = (key[0], query[0]) if self._by_key else (query[0], key[0])
            self._words[token] = self.word(scalars, head[0], owner, other)
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

    @abstractmethod
    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The bits of the thread's columns that a token sees.

        Args:
            scalars: What the call was given.
            head: The query head.
            owner: The token.
            first: The thread's first column, as a token of the other side.
        """


def from_column(bound: Any) -> Any:
    """The bits of the columns that are at `bound`, counted from the thread's first column, or after it."""
    bound = cutlass.max(bound, Int32(0))
    before = (bound >> 3) * 2 + cutlass.min(bound & 7, Int32(2))
    return shl_u32(Uint32(0xFFFFFFFF), Uint32(before))  # a shift by 32 or more leaves nothing
