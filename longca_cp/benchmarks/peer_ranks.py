"""Ranks: the processes that torchrun started, as the core's measuring of ranks sees them."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist

from longca_bench.ranks.world import JobWorld

__all__ = ["Ranks"]

_T = TypeVar("_T")

#: Longer than compiling takes, and no longer: a peer that fails on some ranks alone leaves the others waiting.
_TIMEOUT = datetime.timedelta(seconds=120)


class Ranks(JobWorld):
    """torch.distributed's default process group, made from torchrun's environment.

    Args:
        kind: `cuda` for NCCL, `cpu` for gloo.
    """

    def __init__(self, kind: str) -> None:
        self.device = torch.device(kind)
        if kind == "cuda":
            self.device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        backend = "nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
        self._join(timeout=_TIMEOUT)

    def attempt(self, call: Callable[[], _T]) -> tuple[_T | None, str | None]:
        """What a call returns, and why it failed on the first rank on which it did; None where it failed on none."""
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # whatever a peer raises is its result
            failure = f"{type(error).__name__}: {error}"
        failures = [text for text in self.everyone(failure) if text is not None]
        return (None, failures[0]) if failures else (result, None)

    def leave(self) -> NoReturn:
        """Ends this process when all ranks have come to it.

        At once: backends' threads that a failed peer left waiting would abort a process that winds up, or hold it.
        """
        self.everyone(None)
        sys.stdout.flush()
        os._exit(0)
