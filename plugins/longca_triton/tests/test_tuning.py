"""Tuning with launches of PyTorch's on the CPU and invented times: configurations, comparisons and the record."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from longca import masks
from longca_triton import tuning
from longca_triton.checking import cpu_problem
from longca_triton.config import Config
from longca_triton.tuning import OPERATIONS, parse_config, tune, tuning_parser
from longca_triton.tuning_results import Result, table

from .toy import BROKEN, IN_USE, UNWRITTEN, WRONG, Toy

OTHER = Config(128, 64, 8, 3, True)
PROBLEMS = {name: cpu_problem(masks.build(name, seqlen=40), 2, 1) for name in ("causal", "full")}
SHORT = [replace(PROBLEMS["causal"], mask=masks.build("causal", seqlen=8))]


@pytest.fixture
def times(monkeypatch):
    """Every run takes 2 ms."""

    def median_ms(run):
        run()
        return 2.0

    monkeypatch.setattr(tuning, "median_ms", median_ms)


def found_by(*arguments, candidates=(OTHER,), said=None):
    asked = tuning_parser("Tunes.").parse_args(["--threads", "2", *arguments])
    say = (lambda text: None) if said is None else said.append
    return tune(Toy, dict.fromkeys(OPERATIONS, candidates), PROBLEMS, SHORT, asked, say)


@pytest.mark.usefixtures("times")
def test_each_configuration_is_measured_under_each_mask():
    found = found_by(candidates=[OTHER, IN_USE.dq, OTHER])
    assert [(r.kernel, r.config, r.mask) for r in found if r.kernel == "dq"] == [
        ("dq", config, mask) for config in (IN_USE.dq, OTHER) for mask in PROBLEMS
    ]
    for result in found:
        assert (result.note, result.time_ms) == ("", 2.0)
        operations = OPERATIONS[result.kernel] * 64 * PROBLEMS[result.mask].area
        assert math.isclose(result.tflops, operations / 2e-3 / 1e12)


@pytest.mark.usefixtures("times")
@pytest.mark.parametrize("kernel", OPERATIONS)
def test_what_is_wrong_is_noted(kernel):
    found = found_by("--kernel", kernel, candidates=[BROKEN, WRONG, UNWRITTEN])
    notes = {result.config: result.note for result in found}
    assert notes[getattr(IN_USE, kernel)] == ""
    assert notes[BROKEN] == "RuntimeError: out of resource: shared memory"
    assert notes[UNWRITTEN] == "NaN"
    assert notes[WRONG].startswith("differs by 0.5 of")
    assert [math.isnan(r.time_ms) for r in found] == [r.config == BROKEN for r in found]


@pytest.mark.usefixtures("times")
def test_arguments_narrow_what_is_tried_and_the_record_says_so(tmp_path):
    out, said = tmp_path / "tuned.json", []
    found = found_by("--kernel", "dq", "--config", "32,16,4,2,1", "--out", str(out), said=said)
    assert {r.config for r in found} == {IN_USE.dq, Config(32, 16, 4, 2, True)}
    record = json.loads(out.read_text(encoding="utf-8"))
    assert (record["device"], record["asked"]["kernel"]) == ("cpu", "['dq']")
    first = record["results"][0]
    assert list(first) == ["kernel", "config", "mask", "tflops", "time_ms", "note"]
    assert (first["config"]["block_m"], first["mask"], first["time_ms"]) == (IN_USE.dq.block_m, "causal", 2.0)
    assert said[-1] == table(found)


def test_configurations_on_the_command_line():
    assert parse_config("128,64,8,3,1") == OTHER
    with pytest.raises(ValueError, match="unpack"):
        parse_config("128,64")


def test_tensors_are_the_same_each_time():
    first, second = (tuning.Inputs.make(Toy, PROBLEMS["full"]) for _ in "ab")
    assert first.in_use == IN_USE
    assert all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))


def test_the_table_has_the_best_first_and_what_is_wrong_last():
    def results(config, *rates, note=""):
        pairs = zip(("causal", "full"), rates, strict=True)
        return [Result("dq", config, mask, rate, 1.0, note if mask == "full" else "") for mask, rate in pairs]

    found = [
        *results(IN_USE.dq, 100.0, 400.0),
        *results(OTHER, 300.0, 300.0),
        *results(WRONG, 900.0, 900.0, note="NaN"),
    ]
    header, *lines = table(found).strip().splitlines()
    assert header.split() == ["dq", "m", "n", "warps", "stages", "tma", "mean", "causal", "full"]
    assert " ".join(lines[0].split()) == "128 64 8 3 True 300 300 1.00 ms 300 1.00 ms"
    assert " ".join(lines[1].split()) == "64 64 8 2 False 200 100 1.00 ms 400 1.00 ms in use"
    assert lines[2].endswith("full: NaN")


def test_infinite_values_are_not_compared():
    value = torch.tensor([1.0, -math.inf])
    assert tuning.largest_error((torch.tensor([1.01, -math.inf]),), (value,)) == 0.0
    assert math.isclose(tuning.largest_error((torch.tensor([1.5, 0.0]),), (value,)), 0.5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_median_of_times():
    x = torch.ones(2**26, device="cuda")
    assert 0.01 < tuning.median_ms(lambda: x.mul_(1.0)) < 100
