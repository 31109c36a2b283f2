"""The shapes of a function's tensors. LongCA's own tensors are packed: [tokens, heads, head dim]."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

__all__ = ["Shape"]


class Shape(StrEnum):
    """The order of a tensor's dims.

    Attributes:
        dims: The dims in words.
        tokens: The dim of tokens.
        heads: The dim of heads.
    """

    dims: str
    tokens: int
    heads: int

    def __new__(cls, name: str, dims: str, tokens: int, heads: int) -> Shape:
        """A member with its dims."""
        member = str.__new__(cls, name)
        member._value_, member.dims, member.tokens, member.heads = name, dims, tokens, heads
        return member

    THD = "thd", "[tokens, heads, head dim]", 0, 1
    BHSD = "bhsd", "[batch, heads, tokens, head dim]", 2, 1
    BSHD = "bshd", "[batch, tokens, heads, head dim]", 1, 2

    @property
    def is_batched(self) -> bool:
        """Whether there is a dim of sequences."""
        return self is not Shape.THD

    def laid_out(self, sequences: Sequence[Tensor], *, strided: bool = False) -> Tensor:
        """One tensor of this shape in memory of its own.

        Args:
            sequences: Packed tensors [T, H, D] of the sequences. Without a dim of sequences there is one.
            strided: Whether tokens and heads change places in memory, so that the tensor is not contiguous.
        """
        stacked = torch.stack(tuple(sequences)) if self.is_batched else sequences[0]
        ordered = stacked.transpose(1, 2) if self is Shape.BHSD else stacked
        if strided:
            return (
                ordered.transpose(self.tokens, self.heads)
                .clone(memory_format=torch.contiguous_format)
                .transpose(self.tokens, self.heads)
            )
        return ordered.clone(memory_format=torch.contiguous_format)

    def packed(self, x: Tensor) -> list[Tensor]:
        """The packed tensors [T, H, D] of the sequences."""
        if not self.is_batched:
            return [x]
        return list((x.transpose(1, 2) if self is Shape.BHSD else x).unbind(0))
