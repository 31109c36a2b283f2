"""Merging attention over parts of the keys by their log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["merge"]


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp of a softmax over two sets of keys, from those of each.

    Args:
        first: out [Tq, Hq, D] and lse [Hq, Tq] over some keys.
        second: The same queries over other keys.

    Returns:
        out [Tq, Hq, D] in the dtype of lse, and lse [Hq, Tq].
    """
    lse = torch.logaddexp(first[1], second[1])
    total = torch.zeros_like(first[0], dtype=lse.dtype)
    for out, part in (first, second):
        weight = (part - lse).exp().masked_fill(part == -torch.inf, 0.0)
        total += weight.T[..., None] * out
    return total, lse
