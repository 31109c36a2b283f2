"""The tuning script: its masks and configurations. The tests of longca-triton cover the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from longca import Device, Problem, masks
from longca.masks import Form
from longca_triton.checking import load_script
from longca_triton.tuning import OPERATIONS


@pytest.fixture(scope="module")
def script():
    return load_script(Path(__file__).parents[1] / "benchmarks" / "tune.py")


def intervals(mask):
    return mask.count(Form.ROW_INTERVALS), mask.count(Form.COLUMN_INTERVALS)


def test_short_masks_need_the_code_of_all_others(script):
    problem = Problem(mask=masks.build("full", seqlen=64), heads_q=1, device=Device("cpu"))
    short = script.short_problems(problem)
    compiled = {n for asked in short for n in intervals(asked.mask)}
    assert {asked.mask.seqlen_q for asked in short} == {script.SHORT}
    for name in script.MASKS:
        assert set(intervals(script.build(name, 2**14))) <= compiled, name


@pytest.mark.parametrize("name", ["causal_document", "shared_question", "global_sliding_window"])
@pytest.mark.parametrize("seqlen", [512, 3000, 10000])
def test_masks_of_any_length(script, name, seqlen):
    assert script.build(name, seqlen).seqlen_q == seqlen


def test_each_configuration_is_tried_once(script):
    assert tuple(script.CANDIDATES) == tuple(OPERATIONS)
    for configs in script.CANDIDATES.values():
        assert len(set(configs)) == len(configs)
