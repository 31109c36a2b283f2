"""Repeatability: how far equal results lie apart, by samples that are known."""

import json

import numpy as np
import pytest

from longca_bench.measuring.repeatability import Repeatability, measure_repeatability
from longca_bench.measuring.statistics import geometric_mean_interval

QUIET = {"busy": False, "why": ""}


def results(random, spread, count=8, shift=1.0):
    return [list(shift * np.exp(spread * random.normal()) * np.full(5, 0.01)) for _ in range(count)]


def test_equal_runs_need_no_difference():
    same = [[0.01] * 5] * 8
    found = Repeatability(same, same)
    assert (found.needed, found.ratio.value) == (0.0, 1.0)
    assert found.ratio.contains(1.0)


def test_what_is_needed_is_the_largest_difference_between_the_runs():
    found = Repeatability([[1.0], [1.02], [1.0]], [[1.0], [1.01], [0.99]])
    assert found.needed == pytest.approx(1.02 / 0.99 - 1)
    assert Repeatability([[1.0], [1.0]], [[1.1], [1.1]]).needed == pytest.approx(0.1)


def test_19_of_20_further_pairs_of_equal_results_differ_by_less():
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        needed = Repeatability(results(random, 0.02), results(random, 0.02)).needed
        inside += np.expm1(0.02 * abs(random.normal() - random.normal())) <= needed
    assert inside / 2000 >= 0.95


def test_the_runs_are_compared_as_two_runs_are():
    random = np.random.default_rng(0)
    a, b = results(random, 0.01), results(random, 0.01, count=6, shift=1.5)
    found = Repeatability(a, b, (QUIET, {"busy": True, "why": "2.3 cores of other processes"}))
    assert found.ratio == geometric_mean_interval(zip(a[:6], b, strict=True))
    assert found.ratio.high < 0.8
    assert found.why == ["run B: 2.3 cores of other processes"]
    plain = found.as_json()
    assert json.loads(json.dumps(plain))["interval"] == [found.ratio.low, found.ratio.high]
    assert [len(run) for run in plain["medians"]] == [8, 6]
    assert Repeatability([[1.0]], [[1.0]]).as_json()["interval"] is None


def test_both_runs_do_the_work_and_may_print_other_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tmp_path.joinpath("work_of_a_test.py").write_text(f"""
import json, sys
with open({str(tmp_path / "made")!r}, "a") as made: made.write("x")
print("a library says hello")
print(json.dumps({{kind: {{"results": [[0.5]], "noise": {QUIET}}} for kind in sys.argv[1:]}}))
""")
    found = measure_repeatability(["cpu", "cuda"], "work_of_a_test")
    assert found["cuda"] == Repeatability([[0.5]], [[0.5]], (QUIET, QUIET))
    assert tmp_path.joinpath("made").read_text() == "xx"
