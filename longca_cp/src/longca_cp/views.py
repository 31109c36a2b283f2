"""Views that are worked out once for tensors of the same shape and strides, and then made in one step for each call.

The host launches a short call's kernels in less time than a chain of slices takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["View", "shape_key"]

Ints = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """A view of tensors of one shape and strides.

    Attributes:
        size: Its shape.
        stride: Its strides, in elements.
        offset: Its first element, counted from the tensor's first.
    """

    size: Ints
    stride: Ints
    offset: int

    @classmethod
    def of(cls, whole: Tensor, part: Tensor) -> View:
        """The view that a part of a tensor is."""
        return cls(tuple(part.shape), part.stride(), int(part.storage_offset()) - int(whole.storage_offset()))

    def __call__(self, whole: Tensor) -> Tensor:
        """The view of a tensor of the same shape and strides."""
        return whole.as_strided(self.size, self.stride, whole.storage_offset() + self.offset)


def shape_key(x: Tensor) -> tuple[torch.Size, Ints, torch.dtype, int]:
    """Equal for tensors whose views and copies are alike, which depend on how the first element is aligned too."""
    return x.shape, x.stride(), x.dtype, x.data_ptr() % 16
