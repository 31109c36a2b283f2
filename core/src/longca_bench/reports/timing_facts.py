"""Facts about timing: whether times that are measured on this machine can be trusted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from longca_bench.reports.comparison import verdict
from longca_bench.reports.machine import Fact
from longca_bench.reports.words import brief_percent, ratio_text

if TYPE_CHECKING:
    from longca_bench.measuring.repeatability import Repeatability

__all__ = ["find_governor", "find_timing"]

#: Share that equal results may differ by on a machine that is trusted for timing.
_TRUSTED = 0.05
_CPUS = Path("/sys/devices/system/cpu")
_TURNS = "`longca run --ab A B` lets two kernels take turns, so that both meet the same noise"
_QUIET = "end other processes and let a hot machine cool down, or measure with `longca run --wait-idle 60`"


def find_governor() -> Fact:
    """The policies by which the system chooses the frequencies of cores."""
    found = governors(_CPUS)
    if not found:
        return Fact("frequency", "the system does not tell how it chooses the frequency of cores", None)
    advice = "fixed frequencies make times alike: sudo cpupower frequency-set --governor performance"
    return Fact("frequency", f"governor {', '.join(sorted(found))}", True if found == {"performance"} else None, advice)


def governors(cpus: Path) -> set[str]:
    """The policies by which the system chooses the frequencies of the allowed cores. Empty where it does not tell.

    Args:
        cpus: The folder in which the system describes each core.
    """
    files = (cpus / f"cpu{core}/cpufreq/scaling_governor" for core in os.sched_getaffinity(0))
    return {file.read_text("ascii").strip() for file in files if file.exists()}


def find_timing(kind: str, found: Repeatability) -> Iterator[Fact]:
    """Whether times on a device can be trusted, by two runs of the same work.

    Args:
        kind: `cpu` or `cuda`.
        found: The two runs.
    """
    name, ratio = {"cpu": "CPU", "cuda": "GPU"}[kind], found.ratio
    needed = f"results must differ by more than {brief_percent(found.needed)} to mean something on this machine"
    ends = f"95 % interval {ratio_text(ratio.low)}–{ratio_text(ratio.high)}"
    equal = f"of two equal runs A and B, A took {ratio_text(ratio.value)} times as long as B, {ends}: {verdict(ratio)}"
    yield Fact(f"{name} timing", f"{needed}; {equal}", found.needed <= _TRUSTED, _TURNS)
    why = found.why
    yield Fact(f"{name} noise", "; ".join(why) or "nothing disturbed the runs", not why, _QUIET)
