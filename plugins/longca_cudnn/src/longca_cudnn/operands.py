"""Tensors that cuDNN can take: the tensors themselves if possible, else copies.

cuDNN loads and stores 16 bytes at once, so head dimensions must be contiguous and everything else aligned to 16 bytes.
Inputs of dense graphs may have any strides, outputs are contiguous, and inputs of ragged graphs are contiguous.

Ragged graphs have a known fault. With tokens further apart, as in slices of a fused projection, cuDNN 9.19 with its
frontend 1.32 gave wrong numbers for two documents on an H200, without an error
(https://github.com/NVIDIA/cudnn-frontend/pull/516).

Shapes: operands are [tokens, heads, head_dim], and lse is [Hq, Tq].
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca_cudnn.specs import Strides

__all__ = ["readable", "strides_of", "writable", "writable_lse"]

_ALIGNMENT = 16  # bytes


def strides_of(x: Tensor) -> Strides:
    """The strides of an operand's tokens and heads. A single token or head counts as contiguous."""
    tokens, heads, dim = x.shape
    by_head = dim if heads == 1 else x.stride(1)
    return (heads * dim if tokens == 1 else x.stride(0)), by_head


def readable(x: Tensor, *, ragged: bool) -> Tensor:
    """An input that cuDNN can read: the tensor itself, or a contiguous copy.

    Args:
        x: The input.
        ragged: Whether the graph is ragged.
    """
    bytes_apart = [stride * x.element_size() for stride in strides_of(x)]
    fits = x.stride(2) == 1 and all(apart > 0 and apart % _ALIGNMENT == 0 for apart in bytes_apart)
    in_place = fits and _is_aligned(x) and (x.is_contiguous() or not ragged)
    return x if in_place else x.clone(memory_format=torch.contiguous_format)


def writable(buffer: Tensor | None, like: Tensor) -> Tensor:
    """An output that cuDNN can write: the buffer itself, or a new tensor of `like`'s shape."""
    if buffer is not None and buffer.is_contiguous() and _is_aligned(buffer):
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def writable_lse(buffer: Tensor | None, heads: int, tokens: int, by_token: bool, device: torch.device) -> Tensor:
    """A log-sum-exp that cuDNN can write: the buffer itself if its layout fits, else a new one.

    Args:
        buffer: A tensor [heads, tokens], or None. A tensor of other sizes does not fit.
        heads: Query heads.
        tokens: Queries.
        by_token: True if the heads of a token are neighbours in memory. False if the tokens of a head are.
        device: The device of a new tensor.

    Returns:
        [heads, tokens], contiguous. If `by_token`, its transpose is contiguous instead.
    """
    if buffer is not None and buffer.shape == (heads, tokens) and _is_aligned(buffer):
        laid_out = buffer.T if by_token else buffer
        if laid_out.is_contiguous():
            return buffer
    shape = (tokens, heads) if by_token else (heads, tokens)
    made = torch.empty(shape, dtype=torch.float32, device=device)
    return made.T if by_token else made


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % _ALIGNMENT == 0
