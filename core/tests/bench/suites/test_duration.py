"""The predicted duration of a run, held against runs that were made."""

import pytest

from longca import registry
from longca.manifests import Device
from longca_advice.devices import named_device
from longca_bench.measuring import timing
from longca_bench.suites import duration
from longca_bench.suites.case import _mask
from longca_bench.suites.cases import expand
from longca_bench.suites.duration import Duration, case_seconds, duration_of, in_words, is_measured
from longca_bench.suites.suite import Suite

SWEEP = {
    "patterns": ["causal"], "kernels": ["sdpa"], "seqlens": [8192], "heads": ["32:8"], "head_dims": [128],
    "dtypes": ["bfloat16"],
}  # fmt: skip


def cases(**about):
    suite = Suite.model_validate({"name": "one", "version": 1, "sweep": [{**SWEEP, **about}]})
    return expand(suite, registry().kernels)


def test_calls_are_those_of_timing():
    assert (timing.LEAST, timing.BUDGET) == (duration._LEAST, duration._BUDGET)
    for device, samples in timing.SAMPLES.items():
        costs = duration._COSTS[device]
        assert costs.samples == samples
        assert case_seconds(1.0, device) == pytest.approx(costs.case + costs.checked * 5)
        assert case_seconds(1e-3, device) == pytest.approx(costs.case + costs.checked * (2 + samples) * 1e-3)
        assert case_seconds(1.0, device, is_shared=True) == pytest.approx(costs.shared + costs.checked * 5)


def test_longer_sequences_take_longer():
    seconds = [duration_of(cases(seqlens=[n]), named_device("h200"), registry()).seconds for n in (8192, 65536, 262144)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 2 * seconds[0]


def test_cases_that_are_not_measured_take_no_time():
    found = duration_of(cases(dtypes=["bfloat16", "float64"]), named_device("h200"), registry())
    alone = duration_of(cases(), named_device("h200"), registry())
    assert (found.cases, found.predicted, len(found.refusals)) == (4, 2, 2)
    assert found.seconds == pytest.approx(alone.seconds)


def test_cases_without_evidence_are_named():
    found = duration_of(cases(kernels=["naive"]), named_device("a100"), registry())
    assert found.seconds is None
    assert found.sentence == "The run time is not estimated: no measurement of naive is like these cases."
    some = Duration(10, (1.0, 1.0, None, None), 1, ("a", "b", "c", "d", "e"), ("no",))
    assert some.seconds == pytest.approx(22 * 4 / 5 * 10 + 15)
    assert some.sentence == (
        "10 cases: about 3 min, from 2 min to 6 min, by 5 of them. 2 without a prediction count like the others: "
        "a, b, c, d, …"
    )


def test_a_cpu_without_measurements_has_an_estimate():
    about = {"heads": ["4:2"], "head_dims": [64], "dtypes": ["float32"], "seqlens": [4096]}
    found = duration_of(cases(**about), Device("cpu"), registry())
    assert (found.cases, found.predicted) == (2, 2)
    assert found.sentence == f"2 cases: about {in_words(found.seconds)} on two quiet cores"
    assert found.seconds < duration_of(cases(**about | {"seqlens": [16384]}), Device("cpu"), registry()).seconds


def test_few_masks_are_drawn_for_many_cases():
    grid = {"uniform_block_sparse": {"block": [64], "kept": [0.2, 0.5, 0.8]}}
    about = {"patterns": ["uniform_block_sparse"], "seqlens": [1024, 2048], "head_dims": list(range(8, 512, 32))}
    many = cases(**about, grid=grid, kernels=["naive", "sdpa"])
    before = _mask.cache_info().misses
    found = duration_of(many, named_device("h200"), registry())
    assert (len(many), len(found.calls) + len(found.refusals)) == (384, 192)
    assert _mask.cache_info().misses - before == 3


def test_evidence_is_known_without_masks():
    before = _mask.cache_info().misses
    assert is_measured(cases(), named_device("h200"))
    assert not is_measured(cases(), Device("cpu"))
    assert not is_measured(cases(kernels=["naive"]), named_device("a100"))
    assert _mask.cache_info().misses == before


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "1 s"), (89, "89 s"), (600, "10 min"), (7500, "2 h 5 min")])
def test_words(seconds, said):
    assert in_words(seconds) == said
