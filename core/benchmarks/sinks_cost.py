"""The cost of sinks: the time of a forward and a backward of `longca.attention` with sinks over that without them.

    python core/benchmarks/sinks_cost.py [--kernels fa4 fa3] [--seqlen 32768] [--out results/h200/sinks_cost.json]

The masks are a causal window of 128 and the full causal one, with 64:8 heads of 64. Both ways take turns, each after
calls that load the device, so drift of clocks meets both alike. `cost` is the ratio of their medians less 1.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rows import attempted, training, write_rows

import longca
from longca import registry
from longca.kernels.base import torch_device
from longca.manifests import Problem
from longca.manifests.devices import current_device
from longca.masks import build
from longca_bench.measuring.environment import surroundings
from longca_bench.measuring.timing import calls_in_a_row, loading_calls, take_turns, timed_call
from longca_bench.measuring.world import World
from longca_bench.verification.inputs import draw_inputs

KERNELS = ("fa2", "fa3", "fa4", "fa3+fa4", "cudnn", "cudnn_flex", "flashmask", "flex")
BUDGET = 2.0  # seconds of timed calls


def measure(kernel: str, problem: Problem) -> dict[str, Any]:
    """Median milliseconds without and with sinks, and the cost of sinks."""
    given, world = draw_inputs(problem, seed=0), World(torch_device(problem.device))
    q, k, v = leaves = [x.requires_grad_() for x in (given.q, given.k, given.v)]
    sinks = torch.zeros(problem.heads_q, dtype=given.q.dtype, device=given.q.device, requires_grad=True)

    def call(with_sinks: torch.Tensor | None) -> object:
        out = longca.attention(q, k, v, problem.concrete_mask, kernel=kernel, sinks=with_sinks)
        assert isinstance(out, torch.Tensor)
        return torch.autograd.grad(out, leaves if with_sinks is None else [*leaves, with_sinks], given.dout)

    def once(made: Any) -> tuple[float, object]:
        if world.device.type == "cuda":
            calls_in_a_row(made, loading_calls(timed_call(made, world)[0]), world)
        return timed_call(made, world)[0], None

    ways = {way: partial(once, partial(call, given)) for way, given in (("plain", None), ("sinks", sinks))}
    found = {way: timing.median * 1e3 for way, timing in take_turns(ways, world, BUDGET).items()}
    return {**found, "cost": found["sinks"] / found["plain"] - 1}


def main() -> None:
    """Measures, prints the table, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=KERNELS)
    parser.add_argument("--seqlen", type=int, default=32768)
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    asked, device, rows = parser.parse_args(), current_device(), []
    masks = build("causal_sliding_window", asked.seqlen, window=128), build("causal", asked.seqlen)
    print(f"{'mask':24}{'kernel':12}{'plain, ms':>11}{'sinks, ms':>11}{'cost':>9}")
    for mask in masks:
        problem = training(mask, "64:8", device, 64)
        for kernel in asked.kernels:
            row = attempted(partial(measure, kernel, problem), device)
            rows.append({"mask": mask.label, "kernel": kernel, **row})
            said = row.get("message") or "{plain:>11.3f}{sinks:>11.3f}{cost:>9.2%}".format(**row)
            print(f"{mask.pattern:24}{kernel:12}{said}", flush=True)
    if asked.out:
        write_rows(asked.out, {"environment": surroundings(registry(), device), "seqlen": asked.seqlen}, rows)


if __name__ == "__main__":
    main()
