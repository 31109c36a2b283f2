"""merge: attention over parts of the keys, put together by the log-sum-exps of the parts.

- `merge` puts two parts together, in plain PyTorch.
- `merge_parts` puts together parts that lie in one tensor, so that every kernel call writes straight into its place.
- `Accumulator` takes parts as they are computed, and `Sum` adds up tensors as they are computed.

The last two hand out the buffer for the next result. They hold two results as they were computed. Before a third one,
those two go into a total in float32 (float64 for float64), in one pass over memory. So two parts make one pass and no
total, and any number of parts takes the memory of two results and one total.

On CUDA devices Triton kernels merge (`longca.parallel.merge_triton`). They read each part once and write the output
once, and plain PyTorch would pass over memory eight times. Elsewhere, and in float64, plain PyTorch merges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from longca.kernels.base import fill, writable

__all__ = ["Accumulator", "Sum", "merge", "merge_parts"]

_SLOTS = 2

#: An output [Tq, Hq, D] and its log-sum-exp [Hq, Tq].
_Part = tuple[Tensor, Tensor]

T = TypeVar("T")


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


def merge_parts(
    outs: Tensor, lses: Tensor, *, out: Tensor | None = None, lse: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp of a softmax over all keys, from those over parts of them.

    Args:
        outs: Outputs over each part: [parts, Tq, Hq, D], contiguous.
        lses: Log-sum-exps over each part, −∞ for a query that sees nothing: [parts, Hq, Tq], contiguous.
        out: Buffer for the output, or None for a new tensor: [Tq, Hq, D].
        lse: Buffer for the log-sum-exp, or None for a new tensor: [Hq, Tq].

    Returns:
        out [Tq, Hq, D] in the dtype of `outs`, and lse [Hq, Tq].
    """
    if outs.is_cuda:
        from longca.parallel.merge_triton import merge_parts_on_cuda

        plain_out, plain_lse = writable(out, outs[0]), writable(lse, lses[0])
        merge_parts_on_cuda(outs, lses, plain_out, plain_lse)
        return fill(out, plain_out), fill(lse, plain_lse)
    merged: tuple[Tensor, Tensor] = outs[0], lses[0]
    for part in zip(outs[1:], lses[1:], strict=True):
        merged = merge(merged, part)
    return fill(out, merged[0].to(outs.dtype)), fill(lse, merged[1].to(lses.dtype))


class _Results(ABC, Generic[T]):
    """Results that are put together as they are computed: two as they are, and a total of the earlier ones.

    Args:
        like: A tensor of the shape, dtype and device of each result.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._total: T | None = None
        self._slots: list[T] = []
        self._used = 0

    def slot(self) -> T:
        """A contiguous buffer for the next result. The caller fills it."""
        if self._used == _SLOTS:
            self._total = self._combine(self._empty(self._wide) if self._total is None else self._total)
            self._used = 0
        if self._used == len(self._slots):
            self._slots.append(self._empty(self._like.dtype))
        self._used += 1
        return self._slots[self._used - 1]

    def result(self) -> T:
        """All results together, in the dtype of each. Call it once."""
        if self._used == 0:
            return self._nothing()
        if self._used == 1 and self._total is None:
            return self._slots[0]
        return self._combine(self._slots[0])

    def _parts(self) -> list[T]:
        """The total, if there is one, and the slots in use."""
        return [*([] if self._total is None else [self._total]), *self._slots[: self._used]]

    @abstractmethod
    def _empty(self, dtype: torch.dtype) -> T:
        """A buffer for a result or a total."""

    @abstractmethod
    def _nothing(self) -> T:
        """The result without parts."""

    @abstractmethod
    def _combine(self, into: T) -> T:
        """Puts the parts together, into one of these or into another buffer."""


class Accumulator(_Results[_Part]):
    """The output [Tq, Hq, Dv] and log-sum-exp [Hq, Tq] of a softmax whose keys come in parts. Without parts 0 and −∞.

    Args:
        like: A tensor of the shape, dtype and device of each output: [Tq, Hq, Dv].
    """

    def _empty(self, dtype: torch.dtype) -> _Part:
        tokens, heads, _ = self._like.shape
        out = torch.empty(self._like.shape, dtype=dtype, device=self._like.device)
        return out, torch.empty((heads, tokens), dtype=self._wide, device=self._like.device)

    def _nothing(self) -> _Part:
        out, lse = self._empty(self._like.dtype)
        return out.zero_(), lse.fill_(-torch.inf)

    def _combine(self, into: _Part) -> _Part:
        parts = self._parts()
        if self._like.is_cuda and self._wide == torch.float32:
            from longca.parallel.merge_triton import merge_into_on_cuda

            merge_into_on_cuda(parts, into)
            return into
        merged = parts[0]
        for part in parts[1:]:
            merged = merge(merged, part)
        return into[0].copy_(merged[0]), into[1].copy_(merged[1])


class Sum(_Results[Tensor]):
    """The sum of several tensors of one shape. Without tensors 0."""

    def _empty(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(self._like.shape, dtype=dtype, device=self._like.device)

    def _nothing(self) -> Tensor:
        return self._empty(self._like.dtype).zero_()

    def _combine(self, into: Tensor) -> Tensor:
        parts = self._parts()
        if into.is_cuda and self._wide == torch.float32:
            from longca.parallel.merge_triton import add_into_on_cuda

            add_into_on_cuda(parts, into)
            return into
        return into.copy_(torch.stack([part.to(self._wide) for part in parts]).sum(0))
