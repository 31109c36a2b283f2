"""Tokens: some at a time, because a function of rows may take several times their memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["by_tokens"]

_TOGETHER = 2**13


def by_tokens(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of each row of some tensors, for some tokens at a time.

    Args:
        function: Takes the rows [tokens, H, D] of each tensor, and returns [tokens, H].
        tensors: The tensors: [T, H, D] each.
    """
    return torch.cat([function(*rows) for rows in zip(*(x.split(_TOGETHER) for x in tensors), strict=True)])
