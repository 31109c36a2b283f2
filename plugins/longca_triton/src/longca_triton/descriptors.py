"""How tensors are handed to kernels: as pointers with strides, or as descriptors for the tensor memory accelerator.

Tensors are [tokens, heads, head_dim] with any strides over tokens and heads. A descriptor sees two dimensions: a row is
a token with all its heads, and a head begins at a column of it. A block may begin at any token. So a descriptor needs
heads that lie within their token's stride, 16-byte aligned (CUDA Driver API, cuTensorMapEncodeTiled). Other tensors go
by pointer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["is_describable", "row_shape", "sources", "strides", "vector_sources"]

_ALIGNMENT = 16  # bytes
_FARTHEST = 2**31  # elements: a block's place in a descriptor is a number of 32 bits


def strides(*tensors: Tensor) -> Iterator[int]:
    """Elements from one token to the next and from one head to the next, of each tensor."""
    for tensor in tensors:
        yield tensor.stride(0)
        yield tensor.stride(1)


def sources(tensors: tuple[Tensor, ...], rows: tuple[int, ...], tma: bool) -> tuple[list[Any], bool]:
    """The sources of a kernel's blocks: descriptors if all tensors allow it, else the tensors themselves.

    Args:
        tensors: [tokens, heads, head_dim] each.
        rows: Tokens a block, of each tensor.
        tma: Whether descriptors are wanted.

    Returns:
        The sources, and whether they are descriptors.
    """
    if not (tma and all(is_describable(x) for x in tensors)):
        return list(tensors), False
    return [
        TensorDescriptor(x, *row_shape(x), [block, x.shape[2]]) for x, block in zip(tensors, rows, strict=True)
    ], True


def vector_sources(vectors: Tensor, block: int, tma: bool) -> list[Any]:
    """The same for vectors of one number a query.

    Args:
        vectors: float32 [vectors, heads, queries], contiguous.
        block: Queries a block.
        tma: Whether to make descriptors.
    """
    if not tma:
        return list(vectors)
    return [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, block]) for x in vectors]


def is_describable(x: Tensor) -> bool:
    """Whether a descriptor can have a tensor's tokens as rows, with all their heads."""
    rows, heads = x.stride()[:2]
    steps = rows | (heads if x.shape[1] > 1 else 0)
    is_aligned = x.data_ptr() % _ALIGNMENT == 0 and steps * x.element_size() % _ALIGNMENT == 0
    return x.numel() > 0 and is_aligned and heads >= 0 and _width(x) <= min(rows, _FARTHEST)


def row_shape(x: Tensor) -> tuple[list[int], list[int]]:
    """The shape and strides of such a descriptor."""
    return [x.shape[0], _width(x)], [x.stride(0), 1]


def _width(x: Tensor) -> int:
    """Elements from the start of a token's first head to the end of its last."""
    return (x.shape[1] - 1) * x.stride(1) + x.shape[2]
