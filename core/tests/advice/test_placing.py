"""The placement that is taken without evidence: the least nominal cost with a kernel that takes every step."""

import pytest

from longca import masks
from longca.errors import UnsupportedError
from longca.manifests import Device, Problem
from longca_advice.auto_layout import arrange


def problem(mask=None, **fields):
    mask = mask or masks.build("causal", 64)
    return Problem(**{"mask": mask, "heads_q": 4, "device": Device("cpu"), **fields})


def placed(registry, kernel, asked, *more):
    weighted = [(each, 1.0) for each in (asked, *more)]
    return arrange(registry, weighted, {"round": {"ring": 2}}, kernel).placement


def test_the_quickest_placement_is_the_first_of_equals(rounds):
    assert placed(rounds, "plain", problem()) == "halves", "64 tokens are one tile, however they are placed"


def test_a_pair_is_placed_where_both_halves_take_every_step(rounds):
    assert placed(rounds, "naive+sdpa", problem()) == "halves"
    assert placed(rounds, "naive+plain", problem()) == "halves", "nothing is trained with it"


def test_a_placement_that_no_kernel_takes_is_left_out_and_the_others_are_named(rounds):
    with pytest.raises(UnsupportedError) as caught:
        placed(rounds, "fussy", problem())
    assert "round halves, round stripes, round again: fussy takes no such mask" in str(caught.value)
    assert "round nowhere: too many" in str(caught.value)
