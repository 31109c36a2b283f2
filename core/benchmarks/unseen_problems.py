"""How well recommendations hold on a GPU: twenty problems that no record has, predicted first and measured then.

    python core/benchmarks/unseen_problems.py --out results/h200/advice/problems [--most 4]

Each problem has another length, other heads, documents, windows, prefixes or blocks than the records that LongCA's
evidence is made of. `longca run PATTERN --recommended 4` measures the first choices of each problem, and leaves the
problem's own measurements out of the evidence. A folder that has a run already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def _documents(*parts: tuple[int, int]) -> str:
    """Documents of (length, how many), in this order."""
    return ",".join(str(length) for length, count in parts for _ in range(count))


_MANY = _documents((15000, 1), (64, 125), (9000, 1), (40, 200))
_LONG = _documents((20000, 1), (250, 80), (30000, 1), (1500, 20))

#: Pattern, tokens, heads, and options of the mask.
PROBLEMS: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("causal", 3000, "32:8", ()),
    ("full", 5000, "16:2", ()),
    ("causal", 12000, "24:3", ()),
    ("full", 20000, "8:1", ()),
    ("causal", 49152, "48:8", ()),
    ("causal_document", 6144, "40:40", ("--documents", _documents((4000, 1), (16, 134)))),
    ("causal_document", 40000, "48:8", ("--documents", _MANY)),
    ("full_document", 24576, "32:8", ()),
    ("full_document", 100000, "16:2", ("--documents", _LONG)),
    ("causal_document", 150000, "32:8", ("--documents", _documents((25000, 5), (100, 250)))),
    ("causal_sliding_window", 65536, "32:8", ("--window", "3000")),
    ("full_sliding_window", 200000, "16:2", ("--window", "700")),
    ("global_sliding_window", 30000, "24:3", ("--window", "2000", "--global-tokens", "100")),
    ("prefix_lm_causal", 10000, "48:8", ("--prefix", "3333")),
    ("prefix_lm_document", 36000, "32:8", ()),
    ("shared_question", 50000, "40:40", ()),
    ("uniform_block_sparse", 24576, "32:8", ("--block", "64", "--kept", "0.15")),
    ("uniform_block_sparse", 12288, "8:1", ("--block", "96", "--kept", "0.6")),
    ("uniform_block_sparse", 40960, "16:2", ("--block", "128", "--kept", "0.4")),
    ("variable_block_sparse", 20000, "24:3", ("--kept", "0.4")),
)


def measure(out: Path, most: int, only: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each problem's name with its outcome, as `longca run --recommended` writes it."""
    for pattern, seqlen, heads, options in PROBLEMS:
        name = f"{pattern}_{seqlen}_{heads.replace(':', '-')}"
        if only not in name:
            continue
        folder = out / name
        if not (folder / "advice.json").exists():
            command = [sys.executable, "-m", "longca", "run", pattern, "--seqlen", str(seqlen), "--heads", heads]
            command += ["--seed", "7", "--recommended", str(most), "--out", str(folder), *options]
            subprocess.run(command, check=False)
        if (folder / "advice.json").exists():
            yield name, json.loads((folder / "advice.json").read_text(encoding="utf-8"))[0]


def lines(outcomes: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """A line for each problem, and a summary."""
    every, regrets = list[float](), list[float]()
    for name, outcome in outcomes:
        totals = [way["times"]["total"] for way in outcome["ways"]]
        off = [abs(total["error"]) for total in totals if total["error"] is not None]
        every, regrets = every + off, regrets + [r for r in [outcome["regret"]] if r is not None]
        error = f"{statistics.median(off):.1%}" if off else "not measured"
        yield f"{name:<40}{len(off):>3} choices, error {error}, regret {outcome['regret']}"
    if every and regrets:
        yield f"median error {statistics.median(every):.1%}, mean regret {statistics.mean(regrets):.2%}"


def main() -> None:
    """Measures the problems and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--most", type=int, default=4, help="choices to measure of each problem")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    given = parser.parse_args()
    for line in lines(list(measure(given.out, given.most, given.only))):
        print(line)


if __name__ == "__main__":
    main()
