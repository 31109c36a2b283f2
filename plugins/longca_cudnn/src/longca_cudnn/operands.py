"""Tensors as cuDNN can take them: in place where it can, else as copies.

cuDNN loads and stores 16 bytes at once, so that head dimensions lie together and everything else is aligned to that.
Inputs of dense graphs may have strides of their own. Those of ragged graphs are contiguous: where tokens lie further
apart, as in slices of a fused projection, cuDNN 9.19 with its frontend 1.32 gave wrong numbers for two documents, and
no error, when tried on an H200; https://github.com/NVIDIA/cudnn-frontend/pull/516 has more of it. Outputs are
contiguous.

Shapes: operands [tokens, heads, head_dim]; lse [Hq, Tq].
"""

from __future__ import annotations

import torch
from torch import Tensor

from longca_cudnn.specs import Strides

__all__ = ["readable", "strides_of", "writable", "writable_lse"]

_ALIGNMENT = 16  # bytes


def strides_of(x: Tensor) -> Strides:
    """How far apart an operand's tokens are, and its heads; of a single one, as if it were contiguous."""
    tokens, heads, dim = x.shape
    by_head = dim if heads == 1 else x.stride(1)
    return (heads * dim if tokens == 1 else x.stride(0)), by_head


def readable(x: Tensor, *, ragged: bool) -> Tensor:
    """An input that cuDNN can read: the tensor itself, or a contiguous copy.

    Args:
        x: The input.
        ragged: Whether the graph is.
    """
    bytes_apart = [stride * x.element_size() for stride in strides_of(x)]
    fits = x.stride(2) == 1 and all(apart > 0 and apart % _ALIGNMENT == 0 for apart in bytes_apart)
    in_place = fits and _is_aligned(x) and (x.is_contiguous() or not ragged)
    return x if in_place else x.clone(memory_format=torch.contiguous_format)


def writable(buffer: Tensor | None, like: Tensor) -> Tensor:
    """An output that cuDNN can write: the buffer itself, or a new tensor of the other's shape."""
    if buffer is not None and buffer.is_contiguous() and _is_aligned(buffer):
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def writable_lse(buffer: Tensor | None, heads: int, tokens: int, by_token: bool, device: torch.device) -> Tensor:
    """A log-sum-exp that cuDNN can write: the buffer itself where it is laid out so, or a new one.

    Args:
        buffer: [heads, tokens], or of other sizes, which does not fit.
        heads: Query heads.
        tokens: Queries.
        by_token: Whether a token's heads lie together in memory, rather than a head's tokens.
        device: Where a new one goes.

    Returns:
        [heads, tokens]: contiguous, or where `by_token` its transpose is.
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
