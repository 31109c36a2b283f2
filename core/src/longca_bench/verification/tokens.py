"""Tokens: some at a time, because a function of rows may take several times their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

__all__ = ["by_tokens", "parts"]

_TOGETHER = 2**13


def parts(tensor: Tensor) -> Iterator[slice]:
    """Parts of a tensor's first dimension, some tokens each, for work that needs no more memory than a part has."""
    return (slice(first, first + _TOGETHER) for first in range(0, len(tensor), _TOGETHER))


def by_tokens(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function from rows [tokens, H, D] of each tensor to [tokens, H], for some tokens at a time."""
    return torch.cat([function(*rows) for rows in zip(*(x.split(_TOGETHER) for x in tensors), strict=True)])
