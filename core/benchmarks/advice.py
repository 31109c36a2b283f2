"""How well recommendations hold: twenty problems that no record has, predicted first and measured then.

    python core/benchmarks/advice.py --out results/h200/advice/problems [--most 4] [--seconds 600]
    python core/benchmarks/advice.py --device cpu --scale 64 --out /tmp/tiny        # small stand-ins

Each problem has another length, other heads, documents, windows, prefixes, blocks or shares of blocks than the records
that LongCA's evidence is made of; heads have 128 dims, in bfloat16 (float32 on a CPU). Its first choices that are
installed here are measured as `longca run PATTERN --recommended 4` measures them. All are predicted before the first
is measured, from the evidence that comes with LongCA alone, or with that in --history.

Writes a run's folder, environment.json and records.jsonl, and problems.json: predicted and measured times, errors and
the regret of every problem, with a summary. It is written again after every record, so an end by --seconds or by a
signal keeps what was measured. A kernel that fails is kept with its status.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longca import registry
from longca.errors import LongCAError
from longca.manifests import Device
from longca_bench.cli.options import chosen_device
from longca_bench.measuring.advised import advise, suite_of_ways
from longca_bench.measuring.environment import environment
from longca_bench.measuring.options import Options
from longca_bench.measuring.outcome import Outcome
from longca_bench.measuring.records import Record
from longca_bench.measuring.run_folder import RunFolder
from longca_bench.measuring.runner import run_cases
from longca_bench.suites.cases import expand
from longca_bench.suites.one_problem import problem_suite
from longca_bench.suites.suite import Suite, Sweep

#: Factors that count tokens, and shrink with --scale.
_TOKENS = ("window", "prefix", "global_tokens")


@dataclass(frozen=True)
class Problem:
    """A problem that no record has.

    Attributes:
        pattern: The mask pattern.
        seqlen: Tokens.
        heads: Query heads and KV heads.
        factors: Factors of the mask; the others are drawn.
        seed: Seed of what is drawn.
    """

    pattern: str
    seqlen: int
    heads: str
    factors: dict[str, Any] = field(default_factory=dict)
    seed: int = 7

    @property
    def name(self) -> str:
        """The problem in a few words."""
        factors = (f"{key} {value}" for key, value in self.factors.items() if key != "documents")
        given = f"{len(self.factors['documents'])} documents" if "documents" in self.factors else ""
        return " ".join(part for part in (self.pattern, str(self.seqlen), self.heads, *factors, given) if part)

    def scaled(self, scale: int) -> Problem:
        """The same with so many times fewer tokens; blocks keep their size."""
        if scale == 1:
            return self
        factors = {key: max(1, value // scale) if key in _TOKENS else value for key, value in self.factors.items()}
        if "documents" in factors:
            factors["documents"] = [max(1, length // scale) for length in factors["documents"]]
        seqlen = sum(factors["documents"]) if "documents" in factors else self.seqlen // scale
        return Problem(self.pattern, seqlen, self.heads, factors, self.seed)

    def suite(self, dtype: str) -> Suite:
        """The problem as a suite of one sweep."""
        about: dict[str, Any] = {"factors": self.factors, "heads": [self.heads], "seeds": [self.seed]}
        return problem_suite(self.pattern, seqlens=[self.seqlen], dtypes=[dtype], **about)


def _documents(*parts: tuple[int, int]) -> dict[str, list[int]]:
    """Documents of (length, how many), in this order."""
    return {"documents": [length for length, count in parts for _ in range(count)]}


PROBLEMS = (
    Problem("causal", 3000, "32:8"),
    Problem("full", 5000, "16:2"),
    Problem("causal", 12000, "24:3"),
    Problem("full", 20000, "8:1"),
    Problem("causal", 49152, "48:8"),
    Problem("causal_document", 6144, "40:40", _documents((4000, 1), (16, 134))),
    Problem("causal_document", 40000, "48:8", _documents((15000, 1), (64, 125), (9000, 1), (40, 200))),
    Problem("full_document", 24576, "32:8"),
    Problem("full_document", 100000, "16:2", _documents((20000, 1), (250, 80), (30000, 1), (1500, 20))),
    Problem("causal_document", 150000, "32:8", _documents((25000, 5), (100, 250))),
    Problem("causal_sliding_window", 65536, "32:8", {"window": 3000}),
    Problem("full_sliding_window", 200000, "16:2", {"window": 700}),
    Problem("global_sliding_window", 30000, "24:3", {"window": 2000, "global_tokens": 100}),
    Problem("prefix_lm_causal", 10000, "48:8", {"prefix": 3333}),
    Problem("prefix_lm_document", 36000, "32:8"),
    Problem("shared_question", 50000, "40:40"),
    Problem("uniform_block_sparse", 24576, "32:8", {"block": 64, "kept": 0.15}),
    Problem("uniform_block_sparse", 12288, "8:1", {"block": 96, "kept": 0.6}),
    Problem("uniform_block_sparse", 40960, "16:2", {"block": 128, "kept": 0.4}),
    Problem("variable_block_sparse", 20000, "24:3", {"kept": 0.4}),
)


class _OutOfTimeError(Exception):
    """The time that was given is over."""


@dataclass
class Board:
    """The results so far: each problem, and its outcome or the reason why there is none.

    Attributes:
        path: The file that it is written to.
        head: The other content of the file.
        predicted: Outcomes without measurements, or messages, by problem.
        records: Records by their case.
    """

    path: Path
    head: dict[str, Any]
    predicted: dict[str, Outcome | str] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes with what was measured so far, by problem."""
        found = {name: said for name, said in self.predicted.items() if isinstance(said, Outcome)}
        return {name: outcome.with_records(self.records) for name, outcome in found.items()}

    def write(self) -> None:
        """Writes the file whole, in the place of the one before."""
        outcomes = self.outcomes
        rows = [
            {"name": name, **(outcomes[name].as_json() if name in outcomes else {"message": said})}
            for name, said in self.predicted.items()
        ]
        text = json.dumps({**self.head, "summary": summary(list(outcomes.values())), "problems": rows}, indent=1)
        new = self.path.with_suffix(".new")
        new.write_text(text + "\n", encoding="utf-8")
        new.replace(self.path)


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Errors and regrets of many problems together, of what has both a prediction and a measurement."""
    times = [(name, time) for outcome in outcomes for way in outcome.ways for name, time in way.times.items()]
    totals = [time for name, time in times if name == "total"]
    errors = sorted(abs(time.error) for time in totals if time.error is not None)
    regrets = [outcome.regret for outcome in outcomes if outcome.regret is not None]
    return {
        "problems": len(outcomes),
        "problems_with_regret": len(regrets),
        "ways_measured": sum(time.measured is not None for time in totals),
        "ways_compared": len(errors),
        "median_error": statistics.median(errors) if errors else None,
        "p90_error": errors[min(len(errors) - 1, int(0.9 * len(errors)))] if errors else None,
        "totals_inside": _share([time.inside for time in totals]),
        "directions_inside": _share([time.inside for name, time in times if name != "total"]),
        "mean_regret": statistics.mean(regrets) if regrets else None,
        "worst_regret": max(regrets, default=None),
        "fastest_was_first": _share([regret == 0 for regret in regrets]),
    }


def _share(found: Sequence[bool | None]) -> float | None:
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def predict(chosen: Sequence[Problem], device: Device, most: int) -> Iterator[tuple[Problem, Sweep, Outcome | str]]:
    """Each problem with its sweep and its prediction, or why there is none."""
    for problem in chosen:
        (sweep,) = problem.suite("bfloat16" if device.kind == "cuda" else "float32").sweep
        try:
            yield problem, sweep, advise(sweep, device, registry(), most=most)
        except LongCAError as error:
            yield problem, sweep, str(error)


def measure(suite: Suite, device: Device, board: Board, seconds: float, deadline: float) -> None:
    """Measures all ways of a suite by one worker, until time is over."""
    cases, start = expand(suite, registry().kernels), time.monotonic()
    folder = RunFolder(board.path.parent, board.head["environment"])

    def keep(record: Record) -> None:
        folder.append(record)
        board.records[record.case] = record
        board.write()
        took = f"{record.median * 1e3:9.3f} ms" if record.median is not None else record.message[:90]
        about = f"{record.kernel:16} {record.pattern} {record.seqlen} {record.direction}: {record.status} {took}"
        say(f"{time.monotonic() - start:5.0f} s [{len(board.records)}/{len(cases)}] {about}")
        if time.monotonic() - start > seconds:
            raise _OutOfTimeError

    try:
        run_cases(suite, cases, device, registry(), keep, Options(deadline=deadline))
    except _OutOfTimeError:
        say(f"stopped after {seconds:g} s: {len(board.records)} of {len(cases)} cases are measured")
    finally:
        folder.close()


def table(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """A line for each problem, and the summary."""
    yield f"{'problem':62} {'ways':>4} {'|error|':>8} {'inside':>6} {'regret':>7}  recommended → fastest"
    for name, outcome in outcomes.items():
        about = summary([outcome])
        fastest = "not measured" if outcome.fastest is None else outcome.fastest.title
        numbers = f"{_percent(about['median_error']):>8} {_percent(about['totals_inside']):>6}"
        ways = f"{outcome.ways[0].title} → {fastest}"
        yield f"{name[:62]:62} {about['ways_measured']:>4} {numbers} {_percent(outcome.regret):>7}  {ways}"
    about = summary(list(outcomes.values()))
    yield (
        f"{about['ways_compared']} predicted times: median |error| {_percent(about['median_error'])}, "
        f"p90 {_percent(about['p90_error'])}, {_percent(about['totals_inside'])} inside their interval of 90 %. "
        f"Regret over {about['problems_with_regret']} problems: mean {_percent(about['mean_regret'])}, "
        f"worst {_percent(about['worst_regret'])}; the first choice was the fastest in "
        f"{_percent(about['fastest_was_first'])}."
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def say(text: str) -> None:
    """Tells how far it is."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the records and problems.json")
    parser.add_argument("--most", type=int, default=4, help="choices to measure of each problem")
    parser.add_argument("--seconds", type=float, default=600.0, help="measure no further case after this time")
    parser.add_argument("--deadline", type=float, default=90.0, help="seconds that a case may take")
    parser.add_argument("--only", nargs="+", default=[""], help="problems whose names contain one of these texts")
    parser.add_argument("--scale", type=int, default=1, help="divide lengths by this")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--history", type=Path, help="evidence beside LongCA's own; a run adds its records")
    return parser.parse_args()


def main() -> None:
    """Predicts, measures, and prints the table."""
    asked = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["LONGCA_HISTORY"] = str(asked.history or Path(scratch) / "evidence.jsonl")
        device, scale = chosen_device(asked.device), asked.scale
        chosen = [problem for problem in PROBLEMS if any(text in problem.name for text in asked.only)]
        found = list(predict([problem.scaled(scale) for problem in chosen], device, asked.most))
        known = [(sweep, said) for _, sweep, said in found if isinstance(said, Outcome)]
        for problem, _, said in found:
            if isinstance(said, str):
                say(f"{problem.name}: {said}")
        if not known:
            sys.exit("no problem has a way that can be measured here")
        sweeps, outcomes = zip(*known, strict=True)
        suite = suite_of_ways(Suite(name="advice", version=1, sweep=sweeps), outcomes)
        asked.out.mkdir(parents=True, exist_ok=True)
        head = {"environment": environment(registry(), suite, device), "most": asked.most, "scale": scale}
        board = Board(asked.out / "problems.json", head, {problem.name: said for problem, _, said in found})
        board.write()
        measure(suite, device, board, asked.seconds, asked.deadline)
        print("\n".join(table(board.outcomes)))


if __name__ == "__main__":
    main()
