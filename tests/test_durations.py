"""Predicted durations beside the runs of `results`, whose records say when they ended."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise

from longca import registry
from longca_advice.devices import named_device
from longca_bench.suites.cases import expand
from longca_bench.suites.duration import WITHIN, case_seconds, duration_of
from longca_bench.suites.suite import load_suite

from .imports import ROOT


def test_most_runs_are_within_the_stated_factor():
    ratios = []
    for file in sorted((ROOT / "results").rglob("records.jsonl")):
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        measured = [(one, two) for one, two in pairwise(records) if two["median"] is not None]
        if len(measured) <= 10:
            continue
        last = measured[-1][1]
        is_shared = last.get("strategy") is not None
        if is_shared and last.get("clocks") is None:  # code without a judge, whose ranks started faster
            continue
        ends = ((datetime.fromisoformat(each["finished"]) for each in pair) for pair in measured)
        took = sum((end - begin).total_seconds() for begin, end in ends)
        predicted = sum(case_seconds(record["median"], is_shared=is_shared) for _, record in measured)
        predicted += 10 * len({record["kernel"] for _, record in measured})
        ratios.append(predicted / max(took, 1.0))
    within = sum(1 / WITHIN <= ratio <= WITHIN for ratio in ratios)
    assert len(ratios) > 25
    assert within / len(ratios) > 0.85


def test_ranks_are_predicted_beyond_one_device():
    suite, known = load_suite("distributed"), registry()
    cases = [
        case for case in expand(suite, known.kernels, strategies=known.strategies, ranks=4) if case.kernel == "fa3"
    ]
    causal = [case for case in cases if case.pattern == "causal"][:6]
    found = duration_of(causal, named_device("h200"), known, anywhere=True)
    assert found.predicted == len(causal)
    assert found.seconds is not None
