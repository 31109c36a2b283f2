"""Noise: the load of other processes, the clocks and the drift of a measurement, and the wait for a quiet machine.

A watch looks at the machine before and after the timed calls, and never between them. A look takes a few milliseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from math import sqrt
from pathlib import Path
from typing import Any

import psutil

from longca_bench.measuring.gpu_state import gpu_clock, gpu_used_by_others
from longca_bench.measuring.statistics import drift
from longca_bench.measuring.timing import Timing
from longca_bench.measuring.world import World

__all__ = ["Noise", "own_processes", "quietly", "wait_idle"]

#: Cores that other processes may use beside a measurement on a CPU, or the share of all cores if that is more.
_BUSY_CORES, _BUSY_SHARE = 0.25, 0.02
#: Cores that a measurement on a GPU needs: one launches kernels, and one is for the rest.
_LAUNCHING = 2
#: Share of the GPU's time that other processes may use.
_BUSY_GPU = 0.05
#: Share of the median by which samples may drift. A drift of 10 % moves the median by 5 %.
_DRIFT = 0.1
#: Throttle reasons that are a fault. A GPU at its power limit is as it should be.
_FAULTS = {"HwSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown", "SwThermalSlowdown"}
#: Seconds before a watch in which other processes on the GPU count too. NVML samples processes every 0.2 s.
_BEFORE = 0.25
#: Seconds by which the time that one core worked may be off. The system counts ticks of 10 ms.
_TICKS_OFF = 0.04
#: Times that a disturbed measurement is made again, and how often if it may wait for a quiet machine.
_AGAIN, _AGAIN_AFTER_WAITING = 1, 3
#: Seconds without own work in which a machine shows whether it is quiet.
_LOOK = 0.5

_CPUS = Path("/sys/devices/system/cpu")


class Noise:
    """A watch over the machine, which begins when it is made. The `own` processes and their descendants are ours."""

    def __init__(self, kind: str, own: Iterable[int] = ()) -> None:
        self._on_gpu, self._own = kind == "cuda", {os.getpid(), *own}
        self._since = time.time() - _BEFORE
        self._clock, self._mhz = gpu_clock() if self._on_gpu else {}, _mhz()
        self._others, self._at = self._seconds_of_others(), time.monotonic()

    def stop(self, samples: Sequence[float] = ()) -> dict[str, Any]:
        """Ends the watch over timed calls of some seconds each, and returns plain data. None is a number that the
        system does not tell.

        `other_cores` is the number of cores that other processes used, and `mhz` the frequency of cores at both ends.
        `drift` is the change from the first to the last sample as a share of the median, and 0 if chance explains it.
        `busy` says whether a number is beyond its limit, and `why` names each such number. A GPU has `other_gpu`, the
        share of its time that other processes used, `sm_clock`, its MHz at both ends, and `throttle`.
        """
        begin, end = self._others, self._seconds_of_others()
        seconds = max(time.monotonic() - self._at, 1e-9)
        found: dict[str, Any] = {
            "other_cores": None if begin is None or end is None else _rounded(max(0.0, end - begin) / seconds),
            "mhz": [_rounded(self._mhz), _rounded(_mhz())],
            "drift": _rounded(drift(samples)),
        }
        if self._on_gpu:
            clock = gpu_clock()
            found["other_gpu"] = gpu_used_by_others(own_processes(self._own), self._since, worked=bool(samples))
            found["sm_clock"] = [self._clock.get("sm_clock"), clock.get("sm_clock")]
            found["throttle"] = clock.get("throttle", [])
        why = "; ".join(_reasons(found, seconds))
        return {**found, "busy": bool(why), "why": why}

    def _seconds_of_others(self) -> float | None:
        """Seconds of all but our own processes, and of a virtual machine's neighbours, on the allowed cores, if
        counted.
        """
        times = psutil.cpu_times(percpu=True)
        found = [times[core] for core in _allowed_cores() if core < len(times)]
        if not any(map(sum, found)):
            return None
        idle = sum(each.idle + getattr(each, "iowait", 0.0) for each in found)
        guests = sum(getattr(each, "guest", 0.0) + getattr(each, "guest_nice", 0.0) for each in found)
        return float(sum(map(sum, found)) - idle - guests - _seconds(own_processes(self._own)))


def own_processes(roots: Iterable[int]) -> set[int]:
    """Processes and their descendants."""
    found = set(roots)
    parents = {process.pid: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return found


def wait_idle(kind: str, seconds: float, own: Iterable[int] = ()) -> bool:
    """Waits, after one look at least, until other processes leave the machine alone. Returns whether they do."""
    end = time.monotonic() + seconds
    while True:
        watch = Noise(kind, own)
        time.sleep(_LOOK)
        if not watch.stop()["busy"]:
            return True
        if time.monotonic() >= end:
            return False


def quietly(
    measure: Callable[[], Timing], world: World, own: Iterable[int] = (), wait: float = 0.0
) -> tuple[Timing, dict[str, Any]]:
    """Measures under a watch, and once more if the machine was busy. All ranks of a world do so together.

    With a wait of some seconds, each measurement waits for a quiet machine before, and a disturbed one is repeated up
    to three times. All have to end within these seconds, and a repeat is taken to last as long as the one before.

    The noise is that of the first rank that was disturbed, or of the first rank. With a wait it has `waited`, in
    seconds, and `measured`, the number of measurements.
    """
    kind, left, waited = world.device.type, wait, 0.0
    ours = {pid for some in world.everyone((os.getpid(), *own)) for pid in some}
    most = 1 + (_AGAIN_AFTER_WAITING if wait else _AGAIN)
    for number in range(1, most + 1):
        if wait:
            start = time.monotonic()
            wait_idle(kind, left, ours)
            left -= (seconds := time.monotonic() - start)
            waited += seconds
        measured, watch, start = number, Noise(kind, ours), time.monotonic()
        timing = measure()
        left -= time.monotonic() - start  # the next one takes as long
        everyone = world.everyone((watch.stop(timing.samples), left))
        noise = next((each for each, _ in everyone if each["busy"]), everyone[0][0])
        is_late = wait > 0 and min(each for _, each in everyone) <= 0
        if not noise["busy"] or is_late:
            break
    return timing, {**noise, "waited": _rounded(waited), "measured": measured} if wait else noise


def _reasons(found: dict[str, Any], seconds: float) -> Iterator[str]:
    """The numbers beyond their limits, in words."""
    cores, gpu = found["other_cores"], found.get("other_gpu")
    if cores is not None and cores > _most_cores(seconds, on_gpu="sm_clock" in found):
        yield f"{cores:.1f} cores of other processes"
    if gpu is not None and gpu > _BUSY_GPU:
        yield f"another process used {100 * gpu:.0f} % of the GPU"
    if faults := sorted(_FAULTS.intersection(found.get("throttle", ()))):
        yield f"the GPU lowers its clocks: {', '.join(faults)}"
    if abs(found["drift"]) > _DRIFT:
        yield f"samples drift by {100 * found['drift']:+.0f} %"


def _most_cores(seconds: float, *, on_gpu: bool) -> float:
    """The number of cores that others may use. A GPU's time suffers only if no core is left to launch from."""
    cores = len(_allowed_cores())
    return max(_BUSY_CORES, cores - _LAUNCHING if on_gpu else _BUSY_SHARE * cores) + _TICKS_OFF * sqrt(cores) / seconds


def _seconds(pids: Iterable[int]) -> float:
    """Seconds that processes have computed, and their ended children."""
    found = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            found += sum(psutil.Process(pid).cpu_times()[:4])  # user, system, and both of the children
    return found


def _allowed_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _mhz() -> float | None:
    """Mean frequency of two allowed cores. Reading one can wake it up, and old kernels wait for 10 ms."""
    found = []
    for core in _allowed_cores()[:2]:
        with suppress(OSError, ValueError):
            found.append(int((_CPUS / f"cpu{core}/cpufreq/scaling_cur_freq").read_text("ascii")) / 1e3)
    return sum(found) / len(found) if found else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
