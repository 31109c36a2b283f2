"""Processes: their end, and the time that they have computed."""

from __future__ import annotations

import ctypes
import signal
import time
from contextlib import suppress

__all__ = ["computed", "end_with_parent", "how_it_ended"]

_PR_SET_PDEATHSIG = 1
_CPU_CLOCK = 2  # of `clock_getcpuclockid`: the time that the scheduler counts, in nanoseconds


def end_with_parent() -> None:
    """Makes the system end this process with its parent, at once."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def computed(pid: int) -> float:
    """Seconds that all threads of a process have computed, ended ones too. 0 if the process is gone."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return 0.0


def how_it_ended(code: int) -> str:
    """The way in which a process ended, as a clause without its subject.

    Args:
        code: The exit code, or the negative number of a signal.
    """
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
