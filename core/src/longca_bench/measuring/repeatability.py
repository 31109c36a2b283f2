"""Repeatability: how much two runs of the same work differ on this machine.

Two processes do the same work one after the other, as two runs do that `longca compare` compares. They do not take
turns: drift and other places in memory are part of the difference. A run is several results, and each of them is timed
as a case is.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from longca.errors import LongCAError
from longca_bench.measuring.statistics import Interval, geometric_mean_interval

__all__ = ["DEADLINE", "Repeatability", "measure_repeatability"]

#: Seconds in which a run ends, with importing torch on a busy machine.
DEADLINE = 180.0
_MODULE = "longca_bench.measuring.same_work"
_LAST_WORDS = 500  # characters of a run's complaint that are shown

_Results = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Repeatability:
    """Two runs of the same work on one device.

    Attributes:
        a: The samples of each result of the first run.
        b: The same of the second run.
        noise: The noise of both runs, as `longca_bench.measuring.noise.Noise.stop` gives it.
    """

    a: _Results
    b: _Results
    noise: tuple[dict[str, Any], ...] = ()

    @property
    def ratio(self) -> Interval:
        """The geometric mean of median(A) / median(B) over pairs of results, as `longca compare` has it."""
        return geometric_mean_interval(zip(self.a, self.b, strict=False))

    @property
    def needed(self) -> float:
        """The share by which two results must differ to mean something.

        This is the largest difference between a result of one run and a result of the other, though all of them are of
        the same work. After two runs of 8 results, 19 in 20 further pairs of equal results differ by less.
        A kernel that holds a GPU at its power limit may need more, because the clocks wander there.
        """
        a, b = ([math.log(median(samples)) for samples in run] for run in (self.a, self.b))
        return math.expm1(max(max(a) - min(b), max(b) - min(a)))

    @property
    def why(self) -> list[str]:
        """The disturbances of each run."""
        return [f"run {name}: {each['why']}" for name, each in zip("AB", self.noise, strict=False) if each["busy"]]

    def as_json(self) -> dict[str, Any]:
        """The numbers as plain data. Null stands for an end of an interval that is unknown."""
        ratio = self.ratio
        ends = [ratio.low, ratio.high] if ratio.is_known else None
        runs = [[median(samples) for samples in run] for run in (self.a, self.b)]
        return {"needed": self.needed, "ratio": ratio.value, "interval": ends, "medians": runs, "noise": self.noise}


def measure_repeatability(kinds: Sequence[str], module: str = _MODULE) -> dict[str, Repeatability]:
    """Runs the same work twice.

    Args:
        kinds: Kinds of devices: `cpu` or `cuda`.
        module: The module that does the work.

    Returns:
        The repeatability of each kind of device.

    Raises:
        LongCAError: A run failed, or did not end in time.
    """
    a, b = (_run(kinds, module) for _ in range(2))
    return {
        kind: Repeatability(a[kind]["results"], b[kind]["results"], (a[kind]["noise"], b[kind]["noise"]))
        for kind in kinds
    }


def _run(kinds: Sequence[str], module: str) -> dict[str, Any]:
    """The last line of one run, which is JSON."""
    command = [sys.executable, "-P", "-m", module, *kinds]
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LongCAError(f"the timing did not end within {DEADLINE:g} s; it was ended") from None
    try:
        return dict(json.loads(ran.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = "".join(ran.stderr.strip().splitlines()[-1:])[-_LAST_WORDS:] or "nothing"
        raise LongCAError(f"the timing ended with code {ran.returncode}, and its last words are: {last}") from None
