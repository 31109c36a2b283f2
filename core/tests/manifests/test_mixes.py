"""Mixes: their names, and the kernels and pairs that a step may take."""

import pytest

from longca import masks
from longca.errors import RequestError
from longca.manifests import Device, Problem
from longca.manifests.mixes import asked_of_step, is_mix, kernels_of, mix_of, singles


def test_a_name_is_of_one_kernel_of_a_pair_or_of_a_mix():
    assert [is_mix(name) for name in ("a", "a+b", "a|b")] == [False, False, True]
    assert [kernels_of(name) for name in ("a", "a+b", "a|b|c")] == [("a",), ("a+b",), ("a", "b", "c")]
    assert [singles(name) for name in ("a", "a+b", "a|b")] == [("a",), ("a", "b"), ("a", "b")]
    assert mix_of(["a", "b", "a"]) == "a|b"
    assert mix_of(["a", "a"]) == "a"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a|", "is no mix; name single kernels"),
        ("|", "is no mix"),
        ("a||b", "is no mix"),
        ("a|b+c", "is no mix"),
        ("a|b|a", r"names a kernel twice; name it once: a\|b"),
        ("a|a", "names a kernel twice; name it once: a$"),
    ],
)
def test_names_that_are_refused(name, said):
    with pytest.raises(RequestError, match=said):
        kernels_of(name)


def test_a_step_is_part_of_a_larger_softmax_and_takes_verified_offers():
    about = {"heads_q": 4, "device": Device("cpu"), "allow_unverified": True}
    asked = asked_of_step(Problem(mask=masks.build("causal", 64), **about))
    assert asked.composed
    assert not asked.allow_unverified
