"""Processes: how they end."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

__all__ = ["end_with_parent", "how_it_ended"]

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Makes the system end this process with its parent, at once."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def how_it_ended(code: int) -> str:
    """The way in which a process ended, as a clause without its subject. A negative code is that of a signal."""
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
