import io

import pytest
from rich.console import Console

from longca.errors import RequestError
from longca_bench.measuring.statistics import Interval
from longca_bench.reports.comparison import compare_runs, comparison_json, print_comparison, verdict
from longca_bench.reports.runs import Run

from .runs import ENVIRONMENT, record


def run(*records, environment=ENVIRONMENT):
    return Run(None, records, environment)


def printed(comparison, width=120):
    out = io.StringIO()
    print_comparison(Console(file=out, width=width), comparison)
    return " ".join(out.getvalue().split())


def test_alike_runs_show_no_difference():
    one = run(record(), record(seqlen=2048), record("sdpa"))
    comparison = compare_runs(one, one)
    assert {verdict(pair.ratio) for pair in comparison.pairs} == {"no difference shown"}
    assert verdict(comparison.mean) == "no difference shown"
    assert printed(comparison).endswith(
        "No difference shown, over 3 cases (no difference shown in 3): A/B is 1.000, 95 % interval 0.998–1.003. "
        "The environments are alike."
    )


def test_a_ratio_above_one_says_that_b_is_faster():
    comparison = compare_runs(run(record(time=3e-3), record("sdpa")), run(record(time=1e-3), record("sdpa")))
    first, second = (pair.ratio for pair in comparison.pairs)
    assert (first.value, second.value) == pytest.approx((3, 1))
    assert (verdict(first), verdict(second)) == ("B faster", "no difference shown")
    assert comparison.mean.value == pytest.approx(3**0.5)
    assert verdict(Interval(0.5, 0.4, 0.6)) == "A faster"
    assert "B is 1.732 times as fast as A, over 2 cases (B faster in 1, no difference shown in 1)" in printed(
        comparison
    )


def test_a_busy_machine_has_no_verdict():
    busy = {"machine": {"busy": True, "why": "3.0 cores of other processes"}}
    comparison = compare_runs(run(record(time=3e-3, **busy), record("sdpa")), run(record(), record("sdpa", time=5e-4)))
    found = comparison_json(comparison)
    assert [pair["ratio"]["verdict"] for pair in found["pairs"]] == ["busy in A", "B faster"]
    assert (found["geometric_mean"]["value"], found["geometric_mean"]["verdict"]) == (pytest.approx(2), "B faster")
    assert "over 1 case (B faster in 1)" in printed(comparison)
    assert "3.00~ 1.00 3.000" in printed(comparison)
    alone = compare_runs(run(record(time=3e-3)), run(record(**busy)))
    assert alone.mean is None
    assert (
        "No verdict on 1 case, such as naive causal 1 K forward float32, 4:2 heads of 32, seed 0: the machine was busy "
        "in B (3.0 cores of other processes). The environments are alike."
    ) in printed(alone)


@pytest.mark.parametrize("status", ["oom", "suspect", "skipped"])
def test_what_is_not_ok_is_listed_and_never_compared(status):
    comparison = compare_runs(run(record(), record("sdpa")), run(record(status=status), record("sdpa")))
    assert len(comparison.compared) == 1
    assert f"naive causal 1 K forward float32, 4:2 heads of 32, seed 0: ok in A, {status} in B" in printed(comparison)
    both = run(record(status=status), record("sdpa"))
    assert "1 case measured in neither run." in printed(compare_runs(both, both))


@pytest.mark.parametrize(
    "field",
    [
        {"seed": 1},
        {"lengths": "pile"},
        {"head_dim": 64},
        {"head_dim_v": 16},
        {"softcap": 50.0},
        {"heads_kv": 4},
        {"mask_digest": "f" * 16},
    ],
)
def test_other_cases_are_no_pair(field):
    comparison = compare_runs(run(record(), record("sdpa")), run(record(**field), record("sdpa")))
    assert len(comparison.pairs) == len(comparison.only_a) == len(comparison.only_b) == 1
    assert "In A alone, 1 case" in printed(comparison)
    assert "In B alone, 1 case" in printed(comparison)


def test_runs_without_a_common_case_are_refused():
    with pytest.raises(RequestError, match="no case in common"):
        compare_runs(run(record()), run(record(seed=1)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"python": "3.12.0"}, "python is 3.11.7 in A and 3.12.0 in B"),
        ({"device": {"name": "Other CPU"}}, "device.name is Some CPU in A and Other CPU in B"),
        ({"packages": {"torch": "2.12.0"}}, "packages.torch is 2.13.0 in A and 2.12.0 in B"),
    ],
)
def test_unlike_environments_are_refused_unless_forced(change, told):
    a, b = run(record()), run(record(), environment={**ENVIRONMENT, **change})
    with pytest.raises(RequestError) as refused:
        compare_runs(a, b)
    assert told in str(refused.value)
    assert "--force" in str(refused.value)
    assert f"Unlike in the environments: {told}" in printed(compare_runs(a, b, force=True))


def test_other_suites_drivers_and_missing_environments_are_refused():
    known = run(record(), environment={**ENVIRONMENT, "driver": "580.1"})
    with pytest.raises(RequestError, match=r"suite is quick 1 \(1{16}\) in A and quick 1 \(2{16}\) in B"):
        compare_runs(run(record()), run(record(suite_digest="2" * 16)))
    with pytest.raises(RequestError, match=r"driver is 580\.1 in A and 580\.2 in B"):
        compare_runs(known, run(record(), environment={**ENVIRONMENT, "driver": "580.2"}))
    with pytest.raises(RequestError, match=r"environment\.json is there in A and missing in B"):
        compare_runs(known, run(record(), environment=None))
    other = run(record(time=9.0), record(), environment={**ENVIRONMENT, "git_revision": "[red]abc"})
    found = compare_runs(run(record()), other)
    assert [pair.ratio.value for pair in found.pairs] == pytest.approx([1]), "the last record of a case counts"
    assert not found.differences[0]["forbids"]
    assert printed(found).endswith("Unlike in the environments: git_revision is unknown in A and [red]abc in B")


def test_json_has_null_for_what_is_not_known():
    short = run(record(samples=(1e-3,)))
    found = comparison_json(compare_runs(short, short))
    assert found["geometric_mean"] == {"value": 1.0, "low": None, "high": None, "verdict": "too few samples"}
