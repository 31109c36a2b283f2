"""Masks inside FlashAttention-4's kernels for sm90: a `mask_mod` that costs one bit test an element.

FlashAttention-4 calls a `mask_mod` for every element of a partly visible tile. A naive `mask_mod` compares an index
with an interval's ends. Two intervals then take ten instructions an element, more than the softmax itself. But an
accumulator of `wgmma` gives each thread two tokens on one side of the tile and, on the other side, the columns

    first + 8·(i // 2) + i % 2,    i = 0 … 31 (tiles of 128 tokens) or 15 (of 64)

So one 32-bit word has the visibility of all of the thread's columns for a token, and a few instructions make it.
Element i is bit i of the word. The compiler turns bits into predicates eight at a time (R2P), as in FlashAttention's
own causal masking.

The kernel's Python code asks for the elements in a fixed order, so the number of earlier calls gives the column of an
element. FlashAttention does not promise this order, so the offers that use it name the exact version.

The tables of the words are passed as addresses, in scalars, and not as FlashAttention's `aux_tensors`. FlashAttention
wraps every index into `aux_tensors` by a division so that a ragged edge cannot read past the end. The tables here are
padded instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import cutlass
from cutlass import Int32, Uint32
from flash_attn.cute.utils import scalar_to_ssa, shl_u32

__all__ = ["FragmentMod", "from_column"]

_TOKENS = 2  # tokens of a thread's fragment on the masked side


class FragmentMod(ABC):
    """A `mask_mod` by words of bits.

    Every call of FlashAttention's functions makes a new object. The functions compile once for all equal hashes.

    Args:
        name: The name that distinguishes the compiled kernels of different mods.
        by_key: True if each word belongs to a key and has the queries that see it, as in the backward's transposed
            tiles. False if each word belongs to a query and has the keys that it sees.
        columns: Number of columns of a thread's fragment on the other side: a quarter of the tile's tokens there.
    """

    def __init__(self, name: str, *, by_key: bool, columns: int) -> None:
        self._by_key, self._columns = by_key, columns
        self._asked = 0
        self._words: dict[int, Any] = {}
        self.__cute_hash__ = f"longca-{name}-{by_key}-{columns}"

    def __call__(
        self, batch: Any, head: Any, query: Any, key: Any, seqlen_info: Any, tensors: Any, scalars: tuple[Any, ...]
    ) -> Any:
        """One element, in the order of FlashAttention's tracing. The scalars are those given to the call."""
        token, column = self._position()
        if column == 0:
            owner, other = (key[0], query[0]) if self._by_key else (query[0], key[0])
            self._words[token] = self.word(scalars, head[0], owner, other)
        seen = self._words[token] & Uint32(1 << column)
        return scalar_to_ssa(seen != Uint32(0), cutlass.Boolean)

    def _position(self) -> tuple[int, int]:
        """The thread's token and column that are asked for. Queries are outermost, as in FlashAttention's loops."""
        asked, self._asked = self._asked, self._asked + 1
        if self._by_key:
            column, token = divmod(asked % (_TOKENS * self._columns), _TOKENS)
        else:
            token, column = divmod(asked % (_TOKENS * self._columns), self._columns)
        return token, column

    @abstractmethod
    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The bits of the thread's columns that a token sees."""


def from_column(bound: Any) -> Any:
    """The bits of the columns at or after `bound`, counted from the thread's first column."""
    bound = cutlass.max(bound, Int32(0))
    before = (bound >> 3) * 2 + cutlass.min(bound & 7, Int32(2))
    return shl_u32(Uint32(0xFFFFFFFF), Uint32(before))  # a shift by 32 or more gives 0
