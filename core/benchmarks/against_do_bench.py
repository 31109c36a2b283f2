"""The runner's timing against triton.testing.do_bench, on a bare operator and interleaved, so that drift cancels.

    python core/benchmarks/against_do_bench.py [--out results/h200/core/against_do_bench.json]

Needs a CUDA device. Both flush the L2 cache before each call and take the median; the promise is that they agree
within 3 % on calls of a few hundred microseconds or more. Exits with 1 where they do not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
import triton.testing

from longca.kernels.base import device_of
from longca.manifests import Problem
from longca.masks import build
from longca_bench.measuring.timing import time_calls
from longca_bench.measuring.world import World
from longca_builtin.sdpa import SDPA

ROUNDS = 7


def measure(seqlen: int) -> dict[str, float]:
    """Medians over the rounds, in milliseconds, and the median of the rounds' ratios."""
    q, k, v = (torch.randn(seqlen, heads, 128, dtype=torch.bfloat16, device="cuda") for heads in (64, 8, 8))
    problem = Problem(mask=build("causal", seqlen), heads_q=64, heads_kv=8, head_dim=128, device=device_of(q))
    kernel = SDPA()
    plan = kernel.plan(problem)

    def call() -> object:
        return kernel.forward(q, k, v, plan)

    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(time_calls(call, World(q.device), budget=0.2).median * 1e3)
        theirs.append(triton.testing.do_bench(call, warmup=25, rep=200, return_mode="median"))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return {"ours_ms": statistics.median(ours), "do_bench_ms": statistics.median(theirs), "ratio": ratio}


def main() -> None:
    """Measures a few lengths, prints them, and says whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {str(seqlen): measure(seqlen) for seqlen in (2048, 4096, 8192, 16384)}
    for seqlen, figures in found.items():
        print(f"{seqlen:>6} tokens: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items()))
    if arguments.out:
        arguments.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "cases": found}, indent=2) + "\n")
    sys.exit(any(abs(figures["ratio"] - 1) > 0.03 for figures in found.values()))


if __name__ == "__main__":
    main()
