"""What a placement is taken by: the nominal cost without evidence, else the predicted time."""

import pytest

from longca import masks
from longca.errors import UnsupportedError
from longca.manifests import Device, Problem
from longca_advice.fastest_layouts import place


def problem(pattern="causal", **fields):
    return Problem(**{"mask": masks.build(pattern, 64), "heads_q": 4, "device": Device("cpu"), **fields})


def test_the_quickest_placement_is_the_first_of_equals(rounds):
    placement, layout = place(rounds, "round", "plain", problem(), {"ring": 2})
    assert placement == "halves", "64 tokens are one tile, however they are placed"
    assert layout == rounds.layout("round", problem(), {"ring": 2}, "halves")


def test_a_pair_is_placed_where_both_halves_take_every_step(rounds):
    assert place(rounds, "round", "naive+sdpa", problem(direction="backward"), {"ring": 2})[0] == "halves"
    with pytest.raises(UnsupportedError, match=r"no placement of round does for naive\+plain\. .*backward half: plain"):
        place(rounds, "round", "naive+plain", problem(direction="backward"), {"ring": 2})
    assert place(rounds, "round", "naive+plain", problem(), {"ring": 2})[0] == "halves"


def test_a_placement_that_the_kernel_refuses_is_left_out(rounds):
    stripes = masks.SliceMask([masks.Slice(0, 16, 0, 64), masks.Slice(32, 48, 0, 64)], 64, 64)
    full = rounds.manifest("plain").offers[0].model_copy(update={"form": masks.Form.FULL, "unequal_lengths": True})
    unregistered = rounds.manifest("plain").model_copy(update={"offers": (full,)})
    placement, _ = place(rounds, "round", unregistered, problem().with_mask(stripes), {"ring": 2})
    assert placement == "stripes", "rank 0 sees everything, rank 1 nothing"
    assert place(rounds, "round", "plain", problem().with_mask(stripes), {"ring": 2})[0] == "halves"


def test_no_placement_does_and_why(rounds):
    with pytest.raises(UnsupportedError) as caught:
        place(rounds, "round", "fussy", problem(), {"ring": 2})
    reason = "fussy takes no such mask; this one was asked."
    assert str(caught.value) == (
        f"no placement of round does for fussy. halves, stripes, again: {reason} nowhere: too many"
    )
