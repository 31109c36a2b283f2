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
def advice():
    return script("core/benchmarks/advice")


@pytest.fixture(scope="module")
def found(advice):
    """All figures that take no other process."""
    return advice.report(quick=True)


@pytest.mark.slow
def test_the_table_is_what_the_records_say():
    from longca_advice.evidence import to_lines

    make = script("results/make_evidence")
    made, there = to_lines(make.rows()), make.TABLE.read_text(encoding="utf-8").splitlines()
    assert list(map(to_digits, made)) == list(map(to_digits, there))


def test_the_manifests_of_its_kernels_come_with_it():
    make = script("results/make_evidence")
    assert list(make.plugins()) == make.PLUGINS.read_text(encoding="utf-8").splitlines()


def to_digits(line):
    """A row whose numbers have twelve digits. Processors differ in the last one of a logarithm."""
    return json.loads(line, parse_float=lambda text: float(f"{float(text):.12g}"))


def test_the_table_is_small():
    assert script("results/make_evidence").TABLE.stat().st_size < 1_400_000


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
    """The properties of a kernel's call that are the same in each measurement of it."""
    return *(record[name] for name in ("kernel", "direction", "mask_digest", *CALL)), record.get("softcap")


CALL = ("heads_q", "heads_kv", "head_dim", "dtype")


def test_every_verified_record_is_in_the_table():
    make = script("results/make_evidence")
    taken = {}
    for file in [*RESULTS.glob("h200/*/*/records.jsonl"), *RESULTS.glob("h200/dense/loaded/*/records.jsonl")]:
        run = f"results/{file.parent.relative_to(RESULTS).as_posix()}"
        latest = {record["case"]: record for record in map(json.loads, file.read_text("utf-8").splitlines())}
        name = run.removeprefix("results/")
        least = make.FROM_SECONDS.get(name, 0)
        verified = [r for r in latest.values() if r["status"] == "ok" and r["median"] >= least]
        verified = [r for r in verified if not (r.get("stream") or r.get("sinks"))]
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


def test_predictions_without_calls_like_it_are_close(found):
    every = found["kernels"]["all"]
    assert every["calls"] > 1400
    assert every["median"] <= 0.022
    assert every["p90"] <= 0.09
    assert found["kernels"]["fa3"]["p90"] <= 0.1
    for name in ("own pattern", "own length"):
        assert found["kernels"][f"other dims, {name} left out"]["median"] <= 0.04
        assert found["dims"][name]["coverage"] >= 0.85
    assert found["dims"]["own dims"]["coverage"] >= 0.9, "also where no call of such dims was measured"
    assert 0.85 <= found["coverage"] <= 0.97


def test_peaks_without_calls_like_it_are_close(found):
    peaks = found["memory"]["peak of a call"]
    assert peaks["calls"] > 1400
    assert peaks["median"] <= 0.03
    assert peaks["p90"] <= 0.08


def test_the_recommended_kernel_is_hardly_slower_than_the_fastest(found):
    for kind, regret in found["regret"].items():
        assert regret["problems"] > 100, kind
        assert 0 <= regret["mean"] <= 0.008, kind
        assert regret["p95"] <= 0.04, kind


@pytest.mark.slow
def test_strategies_are_predicted_from_other_numbers_of_gpus(advice):
    found = advice.errors(one.error for one in advice.strategies_left_out(shipped()))
    assert found["calls"] > 300
    assert found["median"] <= 0.06
    assert found["p90"] <= 0.15


def test_no_call_like_it_is_among_the_evidence_of_a_call(advice):
    rows = [row for row in shipped() if row.strategy is None and row.kernel == "fa3"]
    other = [row.model_copy(update={"seconds": 10 * row.seconds}) if row.pattern == "causal" else row for row in rows]

    def predicted(of):
        return [one.predicted for one in advice.leave_out(of) if one.row.pattern == "causal"]

    assert len(predicted(rows)) > 5
    assert predicted(other) == predicted(rows), "a call's own pattern has no say in its prediction"


def test_the_regret_of_a_choice_is_how_much_longer_it_takes(advice):
    def lost(first, second):
        problems = [{("fast", "forward"): (1.0, first), ("slow", "forward"): (1.5, second)}]
        return advice.regret(problems, "forward")["mean"]

    assert lost(1.1, 1.4) == 0
    assert lost(1.6, 1.4) == pytest.approx(0.5)


def test_a_record_of_a_placement_that_has_changed_is_no_evidence():
    lines = (RESULTS / "h200" / "distributed" / "two-placed" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    record = next(r for r in map(json.loads, lines) if r["placed"] == "zigzag" and r["strategy"] == "ring_p2p")
    layout_of(registry(), record, DEVICES["h200"])
    record["area_imbalance"] *= 1.001
    with pytest.raises(PlacementChangedError, match="the placement zigzag has changed"):
        layout_of(registry(), record, DEVICES["h200"])
