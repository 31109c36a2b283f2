"""Processes: all that a process has started, by the system's table, and how to end it.

A process that its parent lost becomes a child of the nearest subreaper above, so whatever a worker starts stays below
the keeper of the workers, whichever session or group it chooses.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress

__all__ = [
    "adopt_orphans",
    "computed",
    "end_all",
    "end_with_parent",
    "how_it_ended",
    "stop_all",
    "wake_without_parent",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CPU_CLOCK = 2  # of `clock_getcpuclockid`: the time that the scheduler counts, in nanoseconds
_PAUSE = 0.005
_PATIENCE = 5.0  # seconds until processes that were ended are gone
_LOOKS = 3  # looks in a row that must find nothing more: a process that forks and ends may be missed in one


def end_with_parent() -> None:
    """Makes the system end this process with its parent, at once."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wake_without_parent() -> None:
    """Makes the system continue this process when its parent ends, even if it is stopped or about to be."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def adopt_orphans() -> None:
    """Makes this process the parent of every process below it that loses its own."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _children() -> dict[int, dict[int, int]]:
    """The children of every process of the system that has some, with their groups."""
    children: dict[int, dict[int, int]] = defaultdict(dict)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            if state not in (b"Z", b"X"):
                children[int(parent)][int(pid)] = int(group)
    return children


def _below(roots: Iterable[int], children: dict[int, dict[int, int]]) -> dict[int, int]:
    """The processes that some processes have started, and what those have started in turn, with their groups."""
    found: dict[int, int] = {}
    left = list(roots)
    while left:
        new = {pid: group for pid, group in children.get(left.pop(), {}).items() if pid not in found}
        found |= new
        left += new
    return found


def end_all(roots: Iterable[int], spared: Collection[int] = ()) -> None:
    """Ends everything below some processes, again and again until nothing is left.

    Args:
        roots: Numbers of the processes. They go on.
        spared: Processes to spare, with everything below them.
    """
    asked, deadline, looks = tuple(roots), time.monotonic() + _PATIENCE, 0
    while looks < _LOOKS and time.monotonic() < deadline:
        found = _send(signal.SIGKILL, asked, spared)
        looks = 0 if found else looks + 1
        if found:
            time.sleep(_PAUSE)


def stop_all(roots: Iterable[int], spared: Collection[int] = ()) -> list[int]:
    """Stops everything below some processes, and says which processes it stopped.

    Args:
        roots: Numbers of the processes. They go on.
        spared: Processes to spare, with everything below them.
    """
    asked, deadline, looks = tuple(roots), time.monotonic() + _PATIENCE, 0
    stopped: list[int] = []
    while looks < _LOOKS and time.monotonic() < deadline:
        found = _send(signal.SIGSTOP, asked, spared, stopped)
        looks = 0 if found else looks + 1
        stopped += found
    return stopped


def _send(
    number: signal.Signals, roots: Collection[int], spared: Collection[int], told: Collection[int] = ()
) -> list[int]:
    """Sends a signal to everything below some processes and to its groups, and says to which processes.

    A group gets it at once, so a process that forks and ends faster than it is found does not escape.

    Args:
        number: The signal.
        roots: Numbers of the processes. They get none.
        spared: Processes that get none, with everything below them.
        told: Processes that had it before, and get none.
    """
    children = _children()
    kept = {*roots, *spared, *_below(spared, children), *told}
    found = {pid: group for pid, group in _below(roots, children).items() if pid not in kept}
    groups = set(found.values()) - {_group(pid) for pid in (os.getpid(), *kept)}
    for send, targets in ((os.killpg, groups), (os.kill, found)):
        for target in targets:
            with suppress(ProcessLookupError, PermissionError):
                send(target, number)
    return list(found)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


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
