"""Exhaustion: how Python, PyTorch and NCCL say that a process has no memory left."""

from __future__ import annotations

import torch

__all__ = ["is_exhausted"]

#: NCCL's words for any error of CUDA. It takes buffers of some hundred megabytes when ranks first exchange data.
_OF_NCCL, _BUFFERS = "unhandled cuda error", 2**30


def is_exhausted(error: BaseException, text: str) -> bool:
    """Whether an error says that its process has no memory left.

    NCCL does not say which error of CUDA it met. It met this one, if the device has no room for NCCL's buffers.

    Args:
        error: The error.
        text: Its text, which a plugin's error may not give safely.
    """
    # PyTorch has these words if a CPU's memory is out.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return True
    return _OF_NCCL in text.lower() and _is_full()


def _is_full() -> bool:
    try:
        return torch.cuda.mem_get_info()[0] < _BUFFERS
    except RuntimeError:  # the context is lost
        return False
