"""Tensors in the layout that cuDNN's open kernels demand: the tensors themselves if possible, else copies.

The kernels load and store 16 bytes at once. They refuse or misread a tensor whose address or strides are no multiples
of that. Strides may be any such multiples, so slices of a fused projection are read in place.

Shapes: operands are [tokens, heads, head_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["aligned", "is_aligned", "result_for"]

_VECTOR = 16  # bytes


def is_aligned(x: Tensor, address: int = _VECTOR, strides: int = _VECTOR) -> bool:
    """Whether the kernels take a tensor in place.

    Args:
        x: The tensor.
        address: Bytes of which its address is a multiple.
        strides: Bytes of which all strides but the last are multiples.
    """
    apart = [stride * x.element_size() for stride in x.stride()[:-1]]
    return x.stride(-1) == 1 and x.data_ptr() % address == 0 and all(a > 0 and a % strides == 0 for a in apart)


def aligned(x: Tensor, address: int = _VECTOR, strides: int = _VECTOR) -> Tensor:
    """An input for the kernels: the tensor itself, or a contiguous copy. See `is_aligned` for the arguments."""
    return x if is_aligned(x, address, strides) else x.clone(memory_format=torch.contiguous_format)


def result_for(buffer: Tensor | None, like: Tensor, address: int = _VECTOR, strides: int = _VECTOR) -> Tensor:
    """A tensor for a result: the caller's buffer if the kernels can write to it, else a new one in `like`'s shape."""
    if buffer is not None and is_aligned(buffer, address, strides):
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)
