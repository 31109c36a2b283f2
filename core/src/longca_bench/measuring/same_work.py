"""The same work: PyTorch's attention, timed as a case is for some seconds, in a process of its own.

    python -m longca_bench.measuring.same_work cpu cuda

The process prints one line of JSON: for each kind of device the samples of each result, and the noise.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from longca_bench.measuring.noise import Noise
from longca_bench.measuring.timing import time_calls
from longca_bench.measuring.world import World

__all__ = ["FEWEST", "SECONDS"]

#: Seconds of one run, and the fewest results in it.
SECONDS, FEWEST = 2.0, 8
#: Seconds without timed work after each result. A case has other work there. Without it a GPU is at its power limit
#: all the time, where its clocks wander.
_PAUSE = 0.1
#: Heads, tokens, head dim and dtype on each kind of device. A call takes about a millisecond.
_SHAPES = {"cpu": (8, 1024, 64, torch.float32), "cuda": (16, 8192, 128, torch.float16)}


def run(kind: str, seconds: float = SECONDS) -> dict[str, Any]:
    """Takes results for some seconds. A result is a warm-up and samples, by the rules of a case.

    Args:
        kind: `cpu` or `cuda`.
        seconds: The time for all results.

    Returns:
        `results`, the samples of each result, and `noise`, as `Noise.stop` gives it.
    """
    heads, tokens, head_dim, dtype = _SHAPES[kind]
    drawn = torch.Generator(kind).manual_seed(0)
    q, k, v = (torch.randn(1, heads, tokens, head_dim, dtype=dtype, device=kind, generator=drawn) for _ in range(3))
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
