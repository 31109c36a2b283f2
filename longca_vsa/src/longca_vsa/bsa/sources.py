"""How tensors are handed to the kernels: as pointers with strides, or as descriptors for the tensor memory accelerator.

Tensors are [tokens, heads, head_dim] with any strides over tokens and heads. A descriptor sees two dimensions: a row is
a token with all its heads, and a head begins at a column of it; a block may begin at any token. So it needs heads that
lie within their token's stride, 16-byte aligned (CUDA Driver API, cuTensorMapEncodeTiled); other tensors go by pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["describable", "described", "described_vectors", "on_device_of", "strides"]

_ALIGNMENT = 16  # bytes
_FARTHEST = 2**31  # elements: a block's place in a descriptor is a number of 32 bits


def strides(*tensors: Tensor) -> Iterator[int]:
    """Elements from one token to the next and from one head to the next, of each tensor."""
    for tensor in tensors:
        yield tensor.stride(0)
        yield tensor.stride(1)


def describable(*tensors: Tensor) -> bool:
    """Whether all of some tensors [tokens, heads, head_dim] can be handed over as descriptors."""
    return all(_is_describable(x) for x in tensors)


def described(x: Tensor, tokens: int) -> TensorDescriptor:
    """A descriptor of blocks of so many tokens of one head."""
    return TensorDescriptor(x, [x.shape[0], _width(x)], [x.stride(0), 1], [tokens, x.shape[2]])


def described_vectors(vectors: Sequence[Tensor], tokens: int) -> list[TensorDescriptor]:
    """Descriptors of the same for vectors of one number a query: float32 [heads, queries] each."""
    return [TensorDescriptor(x, list(x.shape), list(x.stride()), [1, tokens]) for x in vectors]


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Makes a CUDA tensor's device the current one: Triton launches there."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _width(x: Tensor) -> int:
    """Elements from the start of a token's first head to the end of its last."""
    return (x.shape[1] - 1) * x.stride(1) + x.shape[2]


def _is_describable(x: Tensor) -> bool:
    aligned = x.data_ptr() % _ALIGNMENT == 0 and x.stride(0) * x.element_size() % _ALIGNMENT == 0
    return x.numel() > 0 and aligned and x.stride(1) >= 0 and _width(x) <= min(x.stride(0), _FARTHEST)
