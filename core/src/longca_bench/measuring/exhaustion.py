"""Exhaustion: how Python and PyTorch say that a process has no memory left."""

from __future__ import annotations

import torch

__all__ = ["is_exhausted"]


def is_exhausted(error: BaseException, text: str) -> bool:
    """Whether an error says that its process has no memory left.

    Args:
        error: The error.
        text: Its text, which a plugin's error may not give safely.
    """
    # PyTorch has these words if a CPU's memory is out.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text
