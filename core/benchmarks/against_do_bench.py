"""Times of `longca run` against triton.testing.do_bench, by turns, so that drift cancels.

    python core/benchmarks/against_do_bench.py [--kernels sdpa fa3 fa4] [--out results/h200/core/against_do_bench.json]

Needs a CUDA device. Each kernel computes the causal mask, forward and backward. A judge and a worker measure a case as
in any run. do_bench then measures the same call in this process, and so on, several times. A ratio is of both medians.
do_bench launches calls in a row and never waits for one, so launching is hidden behind the call before. LongCA waits
for every call to check it, and keeps the device busy before the next one. Both flush the L2 cache before each call.

The exit code is 1 if a call of 0.3 ms or more differs by more than 3 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import triton.testing
from call_parts import call_of

from longca import registry
from longca.manifests import Direction, Problem
from longca.manifests.devices import current_device
from longca_bench.measuring.environment import surroundings
from longca_bench.measuring.records import Record
from longca_bench.measuring.runner import run_cases
from longca_bench.suites.cases import expand
from longca_bench.suites.suite import Suite, Sweep
from longca_bench.verification.inputs import draw_inputs

ROUNDS = 3
#: Seconds of a call from which the ratio is held to 1, and by how much it may differ.
FROM, WITHIN = 3e-4, 0.03


def suite_of(kernels: list[str], seqlens: list[int]) -> Suite:
    """The causal mask at some lengths."""
    sweep = Sweep(
        patterns=("causal",), kernels=tuple(kernels), seqlens=tuple(seqlens), seeds=(0,), heads=("64:8",),
        head_dims=(128,), dtypes=("bfloat16",),
    )  # fmt: skip
    return Suite(name="against_do_bench", version=1, sweep=(sweep,))


def do_bench(kernel: str, problem: Problem) -> float:
    """Seconds of a call by do_bench."""
    call = call_of(kernel, problem, draw_inputs(problem, seed=0))
    return float(triton.testing.do_bench(call, warmup=25, rep=200, return_mode="median")) / 1e3


def measure(kernels: list[str], seqlens: list[int]) -> list[dict[str, Any]]:
    """A row for each kernel, length and direction, with the seconds of all rounds."""
    device, suite = current_device(), suite_of(kernels, seqlens)
    rows: list[dict[str, Any]] = []

    def keep(record: Record) -> None:
        about = {name: getattr(record, name) for name in ("kernel", "seqlen", "direction")}
        if not rows or any(rows[-1][name] != value for name, value in about.items()):
            rows.append({**about, "ours": [], "theirs": []})
        if record.median is None:
            sys.exit(f"{record.kernel}, {record.seqlen} tokens, {record.direction}: {record.status} {record.message}")
        case = by_case[record.kernel, record.seqlen, Direction(record.direction)]
        rows[-1]["ours"].append(record.median)
        rows[-1]["theirs"].append(do_bench(record.kernel, case.problem(device)))

    by_case = {(case.kernel, case.seqlen, case.direction): case for case in expand(suite, kernels)}
    run_cases(suite, [case for case in by_case.values() for _ in range(ROUNDS)], device, registry(), keep)
    for row in rows:
        row["ratio"] = statistics.median(row["ours"]) / statistics.median(row["theirs"])
    return rows


def main() -> None:
    """Measures, prints a table, and says by the exit code whether the times agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=["sdpa", "fa3", "fa4"])
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2048, 4096, 8192, 16384])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args()
    if current_device().kind != "cuda":
        sys.exit("do_bench needs a CUDA device, and there is none here")
    rows = measure(asked.kernels, asked.seqlens)
    for row in rows:
        ours, theirs = (1e3 * statistics.median(row[name]) for name in ("ours", "theirs"))
        about = f"{row['kernel']:12}{row['seqlen']:>6} {row['direction']:9}"
        print(f"{about}{ours:9.3f} ms  do_bench {theirs:9.3f} ms  ratio {row['ratio']:.3f}", flush=True)
    if asked.out:
        record = {"environment": surroundings(registry(), current_device()), "rows": rows}
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(abs(row["ratio"] - 1) > WITHIN for row in rows if statistics.median(row["theirs"]) >= FROM))


if __name__ == "__main__":
    main()
