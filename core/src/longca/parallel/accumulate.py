"""Accumulating the results of several attention calls as they arrive: softmax parts by their log-sum-exp, and sums.

Both hand out the buffer that the next call writes its result to. Two results are held as they were computed; when a
third is to come, those two go into a total in float32 (float64 for float64), in one pass over memory. So two parts
make one pass and no total, and any number of them takes the memory of two results and one total.

On CUDA devices Triton kernels do that; elsewhere, and in float64, plain PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca.parallel.merge import merge

__all__ = ["Accumulator", "Sum"]

_SLOTS = 2

#: An output [Tq, Hq, D] and its log-sum-exp [Hq, Tq].
_Part = tuple[Tensor, Tensor]


class Accumulator:
    """The output and log-sum-exp of a softmax whose keys come in parts.

    Args:
        q: The queries of all parts: [Tq, Hq, D]. Parts are of their shape and dtype.
    """

    def __init__(self, q: Tensor) -> None:
        self._q = q
        self._wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        self._total: _Part | None = None
        self._slots: list[_Part] = []
        self._used = 0

    def slot(self) -> tuple[Tensor, Tensor]:
        """Buffers for the next part, which the caller fills: out [Tq, Hq, D] and lse [Hq, Tq]."""
        if self._used == _SLOTS:
            self._total = self._merge(self._total or self._empty(self._wide))
            self._used = 0
        if self._used == len(self._slots):
            self._slots.append(self._empty(self._q.dtype))
        self._used += 1
        return self._slots[self._used - 1]

    def result(self) -> tuple[Tensor, Tensor]:
        """The merged output [Tq, Hq, D] in q's dtype, and lse [Hq, Tq]; of no parts, 0 and −∞. Ask for it once."""
        if self._used == 0:
            out, lse = self._empty(self._q.dtype)
            return out.zero_(), lse.fill_(-torch.inf)
        if self._used == 1 and self._total is None:
            return self._slots[0]
        return self._merge(self._slots[0])

    def _empty(self, dtype: torch.dtype) -> _Part:
        tokens, heads, _ = self._q.shape
        out = torch.empty(self._q.shape, dtype=dtype, device=self._q.device)
        return out, torch.empty((heads, tokens), dtype=self._wide, device=self._q.device)

    def _merge(self, into: _Part) -> _Part:
        """Merges the total, where there is one, and the slots in use; into one of these, or into a buffer beside."""
        parts = [*([self._total] if self._total else []), *self._slots[: self._used]]
        if self._q.is_cuda and self._wide == torch.float32:
            from longca.parallel.parts_triton import merge_into_on_cuda

            merge_into_on_cuda(parts, into)
            return into
        merged = parts[0]
        for part in parts[1:]:
            merged = merge(merged, part)
        return into[0].copy_(merged[0]), into[1].copy_(merged[1])


class Sum:
    """The sum of several tensors of one shape.

    Args:
        like: A tensor of their shape, dtype and device.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._wide = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._total: Tensor | None = None
        self._slots: list[Tensor] = []
        self._used = 0

    def slot(self) -> Tensor:
        """A contiguous buffer for the next tensor, which the caller fills."""
        if self._used == _SLOTS:
            if self._total is None:
                self._total = self._add(torch.empty(self._like.shape, dtype=self._wide, device=self._like.device))
            else:
                self._add(self._total)
            self._used = 0
        if self._used == len(self._slots):
            self._slots.append(torch.empty(self._like.shape, dtype=self._like.dtype, device=self._like.device))
        self._used += 1
        return self._slots[self._used - 1]

    def result(self) -> Tensor:
        """The sum in the tensors' dtype; of none, 0. Ask for it once."""
        if self._used == 0:
            return torch.zeros(self._like.shape, dtype=self._like.dtype, device=self._like.device)
        if self._used == 1 and self._total is None:
            return self._slots[0]
        return self._add(self._slots[0])

    def _add(self, into: Tensor) -> Tensor:
        """Adds up the total, where there is one, and the slots in use; into one of these, or into a buffer beside."""
        parts = [*([] if self._total is None else [self._total]), *self._slots[: self._used]]
        if into.is_cuda and self._wide == torch.float32:
            from longca.parallel.parts_triton import add_into_on_cuda

            add_into_on_cuda(parts, into)
            return into
        return into.copy_(torch.stack([part.to(self._wide) for part in parts]).sum(0))
