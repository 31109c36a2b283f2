"""What stands between a caller's tensors and kernels, which want a contiguous last dimension and the current device.

What kernels read is made ready by `longca.kernels.base.readable`, and what they wrote comes back by `fill`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["on_device_of", "writable"]


def writable(buffer: Tensor | None, like: Tensor) -> Tensor:
    """Where a kernel writes: the caller's buffer, or a new tensor where there is none that it can write to."""
    if buffer is not None and buffer.stride(-1) == 1:
        return buffer
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Makes a CUDA tensor's device the current one: plans and Triton's launches go there."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()
