"""Strided tensors: their copies, by the copy engines as rows of one width or by a kernel, and their views."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

__all__ = ["Copy", "View", "copy_words", "shape_key", "strided_copies"]

Ints = tuple[int, ...]

#: The most copies for one push, and the least bytes of a row among many. A kernel copies smaller pieces faster.
_MOST_COPIES, _LEAST_WIDTH = 64, 64


#: The dtype of words of 16 bytes, the longest that a thread of a GPU reads at once.
_WORD = torch.complex128


@dataclass(frozen=True)
class Copy:
    """A copy of `height` rows of `width` bytes. `into` and `source` count bytes from the tensors' first elements."""

    into: int
    into_pitch: int
    source: int
    source_pitch: int
    width: int
    height: int


def strided_copies(into: Tensor, source: Tensor) -> tuple[Copy, ...] | None:
    """The copies that fill a tensor from another of the same shape and dtype. None if their rows are many or short."""
    return _copies(tuple(source.shape), into.stride(), source.stride(), source.element_size())


@lru_cache(maxsize=4096)
def _copies(shape: Ints, into: Ints, source: Ints, size: int) -> tuple[Copy, ...] | None:
    """The copies for a shape and strides."""
    strides = zip(shape, into, source, strict=True)
    dims = _joined([(n, a * size, b * size) for n, a, b in strides if n > 1])
    width = size
    if dims and dims[-1][1:] == (size, size):
        width *= dims.pop()[0]
    rows = dims.pop() if dims else (1, width, width)
    if prod(n for n, _, _ in dims) > _MOST_COPIES or (rows[0] > 1 and (width < _LEAST_WIDTH or min(rows[1:]) < width)):
        return None
    starts = [(0, 0)]
    for n, a, b in dims:
        starts = [(x + i * a, y + i * b) for x, y in starts for i in range(n)]
    return tuple(Copy(x, rows[1], y, rows[2], width, rows[0]) for x, y in starts)


def _joined(dims: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Dims (size, stride, stride), the longest strides first, with dims joined that lie one after another in both."""
    joined: list[tuple[int, int, int]] = []
    for n, a, b in sorted(dims, key=lambda dim: (-dim[2], -dim[1])):
        if joined and joined[-1][1] == n * a and joined[-1][2] == n * b:
            n *= joined.pop()[0]
        joined.append((n, a, b))
    return joined


def copy_words(into: Tensor, source: Tensor) -> None:
    """Fills a tensor from another of the same shape and dtype by a kernel, in words of 16 bytes where both have them.

    PyTorch copies strided tensors by one element after another, which takes longer for elements of 2 bytes.
    """
    begin_words = (into.data_ptr() | source.data_ptr()) % _WORD.itemsize == 0
    if begin_words and _has_words(tuple(source.shape), into.stride(), source.stride(), source.element_size()):
        into, source = into.view(_WORD), source.view(_WORD)
    into.copy_(source)


@lru_cache(maxsize=4096)
def _has_words(shape: Ints, into: Ints, source: Ints, size: int) -> bool:
    """Whether the last dim consists of words in both, each of which begins at a multiple of its length."""
    if not prod(shape) or not shape or into[-1:] != (1,) or source[-1:] != (1,):
        return False
    return not any(length * size % _WORD.itemsize for length in (shape[-1], *into[:-1], *source[:-1]))


@dataclass(frozen=True)
class View:
    """A view of tensors of one shape and strides, which is found once and then made in one step for each call.

    The host launches a short call's kernels in less time than a chain of slices takes. Strides and the offset from the
    tensor's first element are in elements.
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
