"""The processor: its allowed cores, the time that all processes and our own spend on them, and their frequency."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from longca.processes import computed

__all__ = [
    "Reading",
    "allowed_cores",
    "computed_below",
    "count_error",
    "governors",
    "kept_from_us",
    "process_tree",
    "read_processor",
]

PROC, CPUS, GROUP = Path("/proc"), Path("/sys/devices/system/cpu"), Path("/sys/fs/cgroup/cpu.stat")
#: Seconds by which the count of busy time may be off for one core. It counts ticks of 10 ms.
_TICKS_OFF = 0.04
#: Cores whose frequency is read. Reading one can wake it up, and old kernels wait for 10 ms.
_ASKED = 2
#: The fields of a core in /proc/stat in which it works: all but idle and iowait. Guests are in user and nice.
_WORKING = (0, 1, 2, 5, 6, 7)
#: The fields of /proc/PID/stat after the name: the parent, and the ticks of the process and of its ended children.
_PARENT, _TICKS, _ENDED_TICKS = 1, slice(11, 15), slice(13, 15)

#: The parents of processes that were seen before. A parent is asked for until it ends: reading all of them takes long.
_parents: dict[int, int] = {}


@dataclass(frozen=True)
class Reading:
    """One look at the processor.

    Attributes:
        at: Time of the monotonic clock.
        worked: Seconds that all processes have spent on the allowed cores, and other machines on the same host. None
            where the system does not tell.
        own: Seconds that our own processes have spent on any core.
        mhz: Mean frequency of some allowed cores. None where the system does not tell.
    """

    at: float
    worked: float | None
    own: float
    mhz: float | None

    def other_cores(self, begin: Reading) -> float | None:
        """The number of cores that others used since an earlier reading.

        Args:
            begin: The earlier reading, of the same own processes.
        """
        if self.worked is None or begin.worked is None:
            return None
        others = self.worked - begin.worked - (self.own - begin.own)
        return max(0.0, others) / max(self.at - begin.at, 1e-9)


def read_processor(own: Iterable[int]) -> Reading:
    """Reads the processor. A reading takes 0.1 to 0.5 ms.

    Args:
        own: Our own processes. Their descendants are ours too.
    """
    tick, cores = os.sysconf("SC_CLK_TCK"), allowed_cores()
    worked = _worked(cores)
    ticks = sum(sum(map(int, fields[_TICKS])) for pid in process_tree(own) if (fields := _stat(pid)))
    return Reading(time.monotonic(), None if worked is None else worked / tick, ticks / tick, _mhz(cores))


def kept_from_us(own: Iterable[int]) -> Callable[[], float | None]:
    """A function that gives the seconds for which the system kept cores from our own processes since now.

    They are those that others computed on the allowed cores, and those that the quota of our control group took. The
    function gives None where the system does not tell what others compute.

    Args:
        own: Our own processes. Their descendants are ours too.
    """
    ours = tuple(own)
    begin, throttled = read_processor(ours), _throttled()

    def kept() -> float | None:
        end = read_processor(ours)
        others = end.other_cores(begin)
        return None if others is None else others * (end.at - begin.at) + _throttled() - throttled

    return kept


def computed_below(roots: Collection[int]) -> float:
    """Seconds that the processes below some processes have computed, and ended ones that a parent has waited for.

    Args:
        roots: The processes. Their own time does not count.
    """
    running, ended = 0.0, 0
    for pid in process_tree(roots):
        running += computed(pid) if pid not in roots else 0.0
        ended += sum(map(int, _stat(pid)[_ENDED_TICKS]))
    return running + ended / os.sysconf("SC_CLK_TCK")


def allowed_cores() -> set[int]:
    """The cores that this process may use, by its affinity and its control group."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def count_error() -> float:
    """Seconds by which the time that others computed may be off. It grows with the square root of the cores' number."""
    return _TICKS_OFF * sqrt(len(allowed_cores()))


def process_tree(roots: Iterable[int]) -> set[int]:
    """Processes and their descendants. On a system without /proc, only the processes."""
    found = set(roots)
    try:
        alive = {int(name) for name in os.listdir(PROC) if name.isdecimal()}
    except OSError:
        return found
    for gone in _parents.keys() - alive:
        _parents.pop(gone, None)
    orphans = {pid for pid, parent in _parents.items() if parent not in alive}
    for pid in (alive - _parents.keys()) | orphans:
        if fields := _stat(pid):
            _parents[pid] = int(fields[_PARENT])
    children: dict[int, list[int]] = {}
    for pid, parent in list(_parents.items()):
        children.setdefault(parent, []).append(pid)
    left = list(found)
    while left:
        new = set(children.get(left.pop(), ())) - found
        found |= new
        left += new
    return found


def governors() -> set[str]:
    """The policies by which the system chooses the frequencies of the allowed cores. Empty where it does not tell."""
    found = set()
    for core in allowed_cores():
        with suppress(OSError):
            found.add((CPUS / f"cpu{core}/cpufreq/scaling_governor").read_text("ascii").strip())
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, or an empty list for a process that has ended."""
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return []


def _worked(cores: set[int]) -> int | None:
    """Ticks in which cores worked since the start of the system. None if no time has passed: some sandboxes say 0."""
    worked = passed = 0
    try:
        with (PROC / "stat").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, *fields = line.split()
                if not name.startswith("cpu"):
                    break
                if name[3:].isdecimal() and int(name[3:]) in cores:
                    ticks = list(map(int, fields))
                    worked, passed = worked + sum(ticks[place] for place in _WORKING), passed + sum(ticks)
    except OSError:
        return None
    return worked if passed else None


def _throttled() -> float:
    """Seconds for which the quota of our control group kept processes waiting, of all cores together."""
    try:
        counts = dict(line.split(maxsplit=1) for line in GROUP.read_text("ascii").splitlines())
        return int(counts["throttled_usec"]) / 1e6
    except (OSError, ValueError, KeyError):
        return 0.0


def _mhz(cores: set[int]) -> float | None:
    found = []
    for core in sorted(cores)[:_ASKED]:
        with suppress(OSError, ValueError):
            found.append(int((CPUS / f"cpu{core}/cpufreq/scaling_cur_freq").read_text("ascii")) / 1e3)
    return sum(found) / len(found) if found else None
