"""The kernels that a call runs on its device, and the time of each, beside the time of the whole call.

    python core/benchmarks/call_parts.py [--masks causal_document shared_question] [--kernels fa3 fa4] [--seqlen 8192]
        [--out results/h200/dense/call_parts.json]

`main` is the kernel that takes the most time. `others` is the time of all others: sums that are set to zero, deltas of
rows, gradients that are rounded, merging. Their time goes with tokens, so they weigh more where rows see few keys.
`between` is what is left of the call's time. `of limit` is the throughput over that of `fa3`'s full attention of as
many tokens, times the mask's tile efficiency, for the call and for `main` alone. Times are of one profile of several
calls, and of a call without a profile. On a CPU the parts are PyTorch's operators.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from longca import Problem, masks, registry
from longca.kernels.base import torch_device
from longca.manifests import Direction
from longca.manifests.devices import current_device
from longca_bench.measuring.environment import surroundings
from longca_bench.measuring.timing import time_calls
from longca_bench.measuring.world import World
from longca_bench.verification.inputs import Inputs, draw_inputs

CALLS = 5
MASKS = ("causal_document", "prefix_lm_document", "shared_question", "causal_blockwise")


def call_of(name: str, problem: Problem, x: Inputs) -> Callable[[], object]:
    """A kernel's call of the problem's direction."""
    kernel = registry().load(name)
    plan = kernel.plan(problem)
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    if problem.direction == Direction.FORWARD:
        return lambda: kernel.forward(x.q, x.k, x.v, plan)
    return lambda: kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)


def parts(call: Callable[[], object], world: World) -> dict[str, float]:
    """Seconds of each kernel that a call runs, by its name, the longest first."""
    on_cuda = world.device.type == "cuda"
    call()
    world.synchronize()
    with profile(activities=[ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU]) as found:
        for _ in range(CALLS):
            call()
        world.synchronize()
    field = "self_device_time_total" if on_cuda else "self_cpu_time_total"
    seconds = {each.key: getattr(each, field) * 1e-6 / CALLS for each in found.key_averages()}
    return dict(sorted(((name, time) for name, time in seconds.items() if time), key=lambda pair: -pair[1]))


def measure(problem: Problem, name: str, limit: float, x: Inputs) -> dict[str, Any]:
    """A row: the times of a call and of its parts, and shares of a limit in FLOP/s."""
    world, call = World(torch_device(problem.device)), call_of(name, problem, x)
    seconds, found = time_calls(call, world).median, parts(call, world)
    main = next(iter(found.values()))
    reach = limit * problem.concrete_mask.tile_efficiency()
    return {
        "kernel": name,
        "mask": problem.concrete_mask.label,
        "direction": str(problem.direction),
        "seconds": seconds,
        "main": main,
        "others": sum(found.values()) - main,
        "between": seconds - sum(found.values()),
        "of_limit": problem.flops / seconds / reach,
        "main_of_limit": problem.flops / main / reach,
        "parts": found,
    }


def main() -> None:
    """Measures all masks, prints a table, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--masks", nargs="+", default=MASKS, choices=masks.PATTERNS, metavar="PATTERN")
    parser.add_argument("--kernels", nargs="+", default=("fa3", "fa4"))
    parser.add_argument("--dense", default="fa3", help="the kernel of the full mask")
    parser.add_argument("--seqlen", type=int, default=2**13)
    parser.add_argument("--heads", default="64:8")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args()
    heads_q, heads_kv = map(int, asked.heads.split(":"))
    full = Problem(
        mask=masks.build("full", asked.seqlen),
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=128,
        dtype=asked.dtype,
        device=current_device(),
    )
    x, rows = draw_inputs(full, seed=asked.seed), []
    for direction in Direction:
        dense = replace(full, direction=direction)
        limit = dense.flops / time_calls(call_of(asked.dense, dense, x), World(torch_device(full.device))).median
        for pattern in asked.masks:
            problem = dense.with_mask(masks.sample(pattern, asked.seqlen, lengths="auto", seed=asked.seed))
            for name in asked.kernels:
                rows.append(measure(problem, name, limit, x))
                row = rows[-1]
                times = " ".join(f"{key} {1e3 * row[key]:7.3f}" for key in ("seconds", "main", "others", "between"))
                shares = f"of limit {row['of_limit']:.2f}, main {row['main_of_limit']:.2f}"
                print(f"{pattern:24}{name:8}{direction:9} ms: {times}  {shares}", flush=True)
    if asked.out:
        about = {name: str(value) for name, value in vars(asked).items() if name != "out"}
        record = {"environment": surroundings(registry(), full.device), "asked": about, "rows": rows}
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
