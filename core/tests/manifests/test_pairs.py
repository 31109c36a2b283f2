"""Pairs: their names, the problems of their halves, and the reasons in their verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import RequestError
from longca.manifests import Device, Offer, Problem, resolve_manifest
from longca.manifests.pairs import asked_of_halves, halves, join, pair_verdict, split

from ..fake_manifests import fake_manifest

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,39}", fullmatch=True)
USUAL = {"form": "causal", "dtypes": ("bfloat16",), "cpu": True, "metadata": "O(1)"}


def problem(**fields):
    return Problem(**{"mask": masks.build("causal", 64), "heads_q": 4, "device": Device("cpu"), **fields})


def resolved(first, second, **fields):
    """The verdict on a pair of two fakes, one offer each."""
    kernels = (fake_manifest(Offer(**{**USUAL, **offer}), name=n) for n, offer in (("one", first), ("two", second)))
    asked = asked_of_halves(problem(**{"direction": "backward", **fields}))
    verdicts = [resolve_manifest(kernel, part) for kernel, part in zip(kernels, asked, strict=False)]
    return pair_verdict("one+two", verdicts)


@given(NAMES, NAMES)
def test_a_name_is_of_one_kernel_or_of_two(forward, backward):
    assert split(forward) is None
    name = join(forward, backward)
    assert split(name) == (None if forward == backward else (forward, backward))
    assert join(forward, forward) == forward


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a+b+c", "'a.b.c' is no pair; name two kernels, forward and backward"),
        ("+b", "is no pair"),
        ("+", "is no pair"),
    ],
)
def test_names_that_are_refused(name, said):
    with pytest.raises(RequestError, match=said):
        split(name)


@given(st.sampled_from(["forward", "backward"]), st.booleans(), st.booleans())
def test_halves_share_a_log_sum_exp_in_either_direction(direction, composed, deterministic):
    asked = problem(direction=direction, composed=composed, deterministic=deterministic, softmax_scale=0.5)
    forward, backward = halves(asked)
    assert (forward.direction, forward.composed, forward.backward_only) == ("forward", True, False)
    assert (backward.direction, backward.composed, backward.backward_only) == ("backward", True, True)
    for half in (forward, backward):
        assert (half.mask, half.scale, half.deterministic) == (asked.mask, 0.5, deterministic)
    assert halves(backward) == halves(asked)
    assert asked_of_halves(asked) == ((asked,) if direction == "forward" else (forward, backward))


def test_a_forward_alone_and_a_backward_alone_make_a_pair():
    found = resolved({}, {"form": "row_intervals", "forward": False, "backward": "external"})
    assert found.valid
    assert found.kernel == "one+two"
    assert found.form == "causal + row_intervals"
    assert found.offer is None
    assert [offer.form for offer in found.offers] == ["causal", "row_intervals"]
    assert found.is_by(found.offers[1])
    assert not found.is_by(found.offers[0])


@pytest.mark.parametrize(
    ("first", "second", "reasons"),
    [
        ({}, {}, ["backward half: two has a forward alone in its causal form; a backward was asked."]),
        (
            {"rough_lse": True},
            {"backward": "own"},
            [
                "forward half: one's log-sum-exp is too rough to merge by; a pair's halves share a log-sum-exp.",
                "backward half: two's backward takes only its own forward's lse; a pair's halves share a log-sum-exp.",
            ],
        ),
        (
            {"forward": False, "backward": "external"},
            {"backward": "external"},
            [
                "forward half: one has a backward alone in its causal form; a forward was asked. "
                "Pair it with a kernel that has one: FORWARD+one"
            ],
        ),
        (
            {"dtypes": ("float16",)},
            {"backward": "external", "max_head_dim": 64},
            [
                "forward half: one takes float16; bfloat16 was asked.",
                "backward half: two takes head dimensions up to 64; 128 was asked.",
            ],
        ),
    ],
)
def test_reasons_name_the_half_they_are_about(first, second, reasons):
    found = resolved(first, second)
    assert not found.valid
    assert list(map(str, found.reasons)) == reasons


def test_a_forward_is_the_first_half_alone():
    found = resolved({"rough_lse": True}, {"dtypes": ("float16",)}, direction="forward")
    assert found.valid
    assert found.form == "causal"
    assert found.rough_lse, "nobody else reads it"
    refused = resolved({"dtypes": ("float16",)}, {}, direction="forward")
    assert [str(reason) for reason in refused.reasons] == ["forward half: one takes float16; bfloat16 was asked."]
