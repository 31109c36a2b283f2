"""Tuning with launches of PyTorch's on the CPU and invented times: configurations, comparisons and the file."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from longca import masks
from longca_triton import tuning
from longca_triton.checking import cpu_problem
from longca_triton.config import Config
from longca_triton.tuning import OPERATIONS, parse_config, tune, tuning_parser

from .toy import IN_USE, Toy

OTHER = Config(128, 64, 8, 3, True)
PROBLEMS = {name: cpu_problem(masks.build(name, seqlen=40), 2, 1) for name in ("causal", "full")}


@pytest.fixture(autouse=True)
def times(monkeypatch):
    """Every run takes 2 ms."""
    monkeypatch.setattr(tuning, "median_ms", lambda run: run() or 2.0)


def found_by(*arguments, candidates=(OTHER,)):
    said = []
    asked = tuning_parser("Tunes.").parse_args(arguments)
    found = tune(Toy, dict.fromkeys(OPERATIONS, candidates), PROBLEMS, asked, said.append)
    assert len(said[0].splitlines()) == len(found) + 1
    return found


def test_each_configuration_is_measured_under_each_mask():
    found = found_by(candidates=[OTHER, IN_USE.dq, OTHER])
    assert [(r.config, r.mask) for r in found if r.kernel == "dq"] == [
        (config, mask) for mask in PROBLEMS for config in (IN_USE.dq, OTHER)
    ]
    for result in found:
        assert (result.note, result.time_ms) == ("", 2.0)
        operations = OPERATIONS[result.kernel] * 64 * PROBLEMS[result.mask].area
        assert math.isclose(result.tflops, operations / 2e-3 / 1e12)


def test_arguments_narrow_what_is_tried_and_the_file_has_it(tmp_path):
    out = tmp_path / "tuned.csv"
    found = found_by("--kernel", "dq", "--config", "32,16,4,2,1", "--out", str(out))
    assert {r.config for r in found} == {IN_USE.dq, Config(32, 16, 4, 2, True)}
    assert sorted(pd.read_csv(out)["block_m"]) == sorted(r.config.block_m for r in found)
    assert parse_config("128,64,8,3,1") == OTHER
