"""Repeatability: how much two runs of the same work differ on this machine.

Two processes do the same work one after the other, as two runs do that `longca compare` compares. They do not take
turns: drift and other places in memory are part of the difference. A run is several results, and each of them is timed
as a case is. The work is PyTorch's attention.

    python -m longca_bench.measuring.repeatability cpu cuda

The process prints one line of JSON: for each kind of device the samples of each result, and the noise.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

from longca_bench.measuring.module_output import last_json_line
from longca_bench.measuring.statistics import Interval, geometric_mean_interval

__all__ = ["FEWEST", "Repeatability", "measure_repeatability"]

#: Seconds in which a run ends, with importing torch on a busy machine.
_DEADLINE = 180.0
#: Seconds of one run, and the fewest results in it.
SECONDS, FEWEST = 2.0, 8
#: Seconds without timed work after each result. A case has other work there. Without it a GPU is at its power limit
#: all the time, where its clocks wander.
_PAUSE = 0.1
#: Heads, tokens, head dim and dtype on each kind of device. A call takes about a millisecond.
_SHAPES = {"cpu": (8, 1024, 64, "float32"), "cuda": (16, 8192, 128, "float16")}

_Results = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Repeatability:
    """The samples of each result of two runs of the same work, and the noise as `Noise.stop` gives it."""

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


def measure_repeatability(kinds: Sequence[str], module: str = __name__) -> dict[str, Repeatability]:
    """Runs the same work twice on each kind of device, `cpu` or `cuda`. A failed run is a LongCAError."""
    a, b = (last_json_line(module, *kinds, what="the timing", seconds=_DEADLINE) for _ in range(2))
    return {
        kind: Repeatability(a[kind]["results"], b[kind]["results"], (a[kind]["noise"], b[kind]["noise"]))
        for kind in kinds
    }


def run(kind: str, seconds: float = SECONDS) -> dict[str, Any]:
    """The samples of each result in some seconds, timed as a case is, and the noise as `Noise.stop` gives it."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from longca_bench.measuring.noise import Noise
    from longca_bench.measuring.timing import time_calls
    from longca_bench.measuring.world import World

    heads, tokens, head_dim, dtype = _SHAPES[kind]
    drawn, about = torch.Generator(kind).manual_seed(0), {"dtype": getattr(torch, dtype), "device": kind}
    q, k, v = (torch.randn(1, heads, tokens, head_dim, generator=drawn, **about) for _ in range(3))
    call, world = partial(scaled_dot_product_attention, q, k, v, is_causal=True), World(torch.device(kind))
    results: list[tuple[float, ...]] = []
    time_calls(call, world)
    watch, end = Noise(kind, (os.getppid(),)), time.monotonic() + seconds
    while len(results) < FEWEST or time.monotonic() < end:
        results.append(time_calls(call, world).samples)
        time.sleep(_PAUSE)
    return {"results": results, "noise": watch.stop(list(chain(*results)))}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({kind: run(kind) for kind in sys.argv[1:]}) + "\n")
