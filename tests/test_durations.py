"""Predicted durations beside the runs of `results`, whose records say when they ended."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise

from longca_bench.suites.duration import _COSTS, WITHIN, case_seconds

from .imports import ROOT

#: Since then results are compared in another process, so that a case takes longer.
JUDGED_SINCE = "2026-11-25"
#: The default deadline of a case. A longer time between two records lies between two starts of a resumed run.
DEADLINE = 600.0
#: When the first record after a shorter time was written: results/h100/sparse/hopper64 and
#: results/h200/core/dtypes_bfloat16 were ended, and resumed.
RESUMED = {"2026-11-28T00:40:45+00:00", "2026-11-28T17:17:52+00:00"}


def test_runs_are_within_the_stated_factor():
    ratios = []
    for file in sorted((ROOT / "results").rglob("records.jsonl")):
        records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        went_on = [(one, two) for one, two in pairwise(records) if two["finished"] not in RESUMED]
        measured = [(one, two) for one, two in went_on if two["median"] is not None]
        if len(measured) <= 10 or records[-1]["finished"] < JUDGED_SINCE:
            continue
        ends = ((datetime.fromisoformat(each["finished"]) for each in pair) for pair in measured)
        steps = zip(((end - begin).total_seconds() for begin, end in ends), (two for _, two in measured), strict=True)
        kept = [(seconds, record) for seconds, record in steps if seconds <= DEADLINE]
        took = sum(seconds for seconds, _ in kept)
        device = "cuda" if "compute capability" in records[-1]["device"] else "cpu"
        predicted = sum(
            case_seconds(one["median"], device, is_shared=one.get("strategy") is not None) for _, one in kept
        )
        predicted += _COSTS[device].kernel * len({record["kernel"] for _, record in kept})
        ratios.append(predicted / took)
    assert len(ratios) > 40
    assert all(1 / WITHIN <= ratio <= WITHIN for ratio in ratios)
