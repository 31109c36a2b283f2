"""The evidence that comes with LongCA: it is what the records say, and predictions from it are as good as is said."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

from longca import registry
from longca_advice.devices import DEVICES
from longca_advice.evidence import shipped
from longca_advice.from_records import PlacementChangedError, layout_of
from longca_bench.measuring.records import read_records

from .scripts import RESULTS, script


@pytest.fixture(scope="module")
def leave_out():
    return script("results/leave_out")


@pytest.fixture(scope="module")
def left(leave_out):
    """Every call, predicted without those that look like it."""
    return leave_out.leave_out(shipped())


@pytest.mark.slow
def test_the_table_is_what_the_records_say():
    from longca_advice.evidence import to_lines

    make = script("results/make_evidence")
    made, there = to_lines(make.rows()), make.TABLE.read_text(encoding="utf-8").splitlines()
    assert list(map(to_digits, made)) == list(map(to_digits, there))


def to_digits(line):
    """A row whose numbers have twelve digits. Processors differ in the last one of a logarithm."""
    return json.loads(line, parse_float=lambda text: float(f"{float(text):.12g}"))


def test_the_table_is_small():
    assert script("results/make_evidence").TABLE.stat().st_size < 1_000_000


def has_another_placement_today(record):
    """Whether tokens are on other ranks today than when a record was measured."""
    if record.get("placed") is None:
        return False
    try:
        layout_of(registry(), record, DEVICES["h200"])
    except PlacementChangedError:
        return True
    return False


def call_of(record):
    """What is the same in two measurements of a kernel's call."""
    return tuple(record[name] for name in ("kernel", "direction", "mask_digest", *CALL))


CALL = ("heads_q", "heads_kv", "head_dim", "dtype")


def test_every_verified_record_is_in_the_table():
    make = script("results/make_evidence")
    taken = {}
    for file in [*RESULTS.glob("h200/*/*/records.jsonl"), *RESULTS.glob("h200/dense/loaded/*/records.jsonl")]:
        run = f"results/{file.parent.relative_to(RESULTS).as_posix()}"
        latest = {record["case"]: record for record in map(json.loads, file.read_text("utf-8").splitlines())}
        name = run.removeprefix("results/")
        least = make.FROM_SECONDS.get(name, 0)
        verified = [r for r in latest.values() if r["status"] == "ok" and r["median"] >= least and not r.get("stream")]
        changed = [r for r in verified if has_another_placement_today(r)]
        assert {r["placed"] for r in changed} <= {"balanced"}
        taken[run] = [r for r in verified if r not in changed and not make.is_left_out(name, r)]
    every = [record for records in taken.values() for record in records if record.get("strategy") is None]
    loaded = {call_of(record) for record in every if record["finished"] >= make.LOADED_SINCE}
    rested = [record for record in every if record["finished"] < make.LOADED_SINCE and call_of(record) in loaded]
    taken = {run: [record for record in records if record not in rested] for run, records in taken.items()}
    assert Counter(row.run.run for row in shipped()) == {run: len(found) for run, found in taken.items() if found}
    assert len(shipped()) > 1500
    assert all((RESULTS / name / "records.jsonl").exists() for name in make.LEFT_OUT), "what is left out is there"


def test_no_call_has_times_of_a_rested_and_of_a_loaded_device():
    make, conditions = script("results/make_evidence"), defaultdict(set)
    for row in shipped():
        if row.strategy is None:
            call = (row.kernel, row.direction, row.mask, *(getattr(row, name) for name in CALL))
            conditions[call].add(row.run.finished < make.LOADED_SINCE)
    assert all(len(found) == 1 for found in conditions.values())
    assert len({found.pop() for found in conditions.values()}) == 2, "some calls were measured in one condition alone"


def test_a_strategy_whose_kernel_computes_otherwise_since_is_no_measured_call():
    make, rows = script("results/make_evidence"), [row for row in shipped() if row.strategy is not None]
    earlier = [row for row in rows if row.placed is None]
    assert {row.kernel for row in earlier} == {"fa3"}
    assert all(row.finished < make.RECTANGLES_SINCE and row.observed and row.shared_call is None for row in earlier)
    assert len([row for row in rows if row.shared_call is not None]) > 300


def test_every_record_of_earlier_versions_is_read():
    files = list(RESULTS.rglob("records.jsonl"))
    assert sum(len(list(read_records(file.parent))) for file in files) > 2800


def test_predictions_without_calls_like_it_are_close(leave_out, left):
    found = leave_out.errors(leave_out.usual(left))
    assert found["calls"] > 1400
    assert found["unpredicted"] == 0
    assert found["median"] <= 0.025
    assert found["p90"] <= 0.085
    assert leave_out.by_kernel(left)["fa3"]["p90"] <= 0.1


def test_what_is_recommended_is_hardly_slower_than_the_fastest(leave_out, left):
    found = leave_out.regrets(leave_out.usual(left))
    assert set(found) == {"forward", "backward", "training", "pairs"}
    for kind, regret in found.items():
        assert regret["problems"] > 100, kind
        assert 0 <= regret["mean"] <= 0.006, kind
        assert regret["p95"] <= 0.04, kind


def test_what_is_recommended_for_a_measured_call_is_hardly_slower_than_the_fastest(leave_out):
    for kind, regret in leave_out.regrets(leave_out.seen(shipped())).items():
        assert regret["problems"] > 50, kind
        assert 0 <= regret["mean"] <= 0.005, kind
        assert regret["p95"] <= 0.03, kind


def test_intervals_hold_about_as_many_calls_as_they_say(leave_out, left):
    assert 0.85 <= leave_out.coverage(left) <= 0.97


def test_no_call_like_it_is_among_what_a_call_is_predicted_from(leave_out):
    rows = [row for row in shipped() if row.strategy is None and row.kernel == "fa3"]
    other = [row.model_copy(update={"seconds": 10 * row.seconds}) if row.pattern == "causal" else row for row in rows]

    def predicted(of):
        return [one.predicted for one in leave_out.leave_out(of) if one.record.pattern == "causal"]

    assert len(predicted(rows)) > 5
    assert predicted(other) == predicted(rows), "a call's own pattern has no say in its prediction"


def test_the_regret_of_a_choice_is_how_much_longer_it_takes(leave_out):
    row = next(row for row in shipped() if row.strategy is None and row.direction == "forward")
    fast, slow = (row.model_copy(update={"kernel": name, "seconds": s}) for name, s in (("fast", 1.0), ("slow", 1.5)))

    def left(of_fast, of_slow):
        return [leave_out.Left(fast, of_fast, 0.0, 1.2), leave_out.Left(slow, of_slow, 0.0, 1.2)]

    def lost(times):
        problems = [{("fast", "forward"): (1.0, times[0]), ("slow", "forward"): (1.5, times[1])}]
        return leave_out.regret(problems, "forward")["max"]

    assert lost((1.1, 1.4)) == 0
    assert lost((1.6, 1.4)) == pytest.approx(0.5)
    assert leave_out.errors(left(1.1, 1.5))["max"] == pytest.approx(0.1)
    assert leave_out.coverage(left(1.1, 1.5)) == 0.5
