"""Global state that changes the results or the time of later calls: the default dtype, precision flags and threads."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["GlobalState"]


class GlobalState:
    """The global state of this process at the moment of the last look."""

    def __init__(self) -> None:
        self._values = _look()

    def changed(self) -> list[str]:
        """Looks again, and returns the names of what has changed since the last look."""
        before, self._values = self._values, _look()
        return [name for name, value in self._values.items() if value != before[name]]


def _look() -> dict[str, Any]:
    every: Any = torch.backends
    cuda, cudnn, mkldnn = every.cuda.matmul, every.cudnn, every.mkldnn
    backends = (every, cuda, cudnn, cudnn.conv, cudnn.rnn, mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    return {
        "default dtype": torch.get_default_dtype(),
        "threads of torch": torch.get_num_threads(),
        "float32 precision": [str(backend.fp32_precision) for backend in backends],
        "precision flags": (
            cuda.allow_bf16_reduced_precision_reduction,
            cuda.allow_fp16_reduced_precision_reduction,
            getattr(cuda, "allow_fp16_accumulation", False),  # of PyTorch 2.7
        ),
    }
