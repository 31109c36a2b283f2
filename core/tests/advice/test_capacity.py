"""Capacities: their names, and what fits."""

import pytest

from longca import masks
from longca.errors import RequestError
from longca.manifests import Device, Problem
from longca_advice.capacity import Capacity, fewest_ranks, longest_sequence
from longca_advice.memory import held_bytes

PROBLEM = Problem(
    mask=masks.build("causal", seqlen=10**9), heads_q=64, heads_kv=8, device=Device("cuda", (9, 0)), head_dim=128
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("1.5TB", 15 * 10**11),
        ("80gb", 80 * 10**9),
    ],
)
def test_a_size_has_a_unit(text, size):
    assert Capacity.parse(text) == Capacity(size)


@pytest.mark.parametrize("text", ["", "80", "GB", "80 apples", "-80GB"])
def test_anything_else_is_refused(text):
    with pytest.raises(RequestError, match="80GB"):
        Capacity.parse(text)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("ranks", [1, 8])
def test_the_longest_sequence_fits_and_one_more_token_a_rank_does_not(ranks, training):
    capacity = Capacity.parse("80GB")
    tokens = longest_sequence(PROBLEM, capacity, ranks=ranks, training=training) // ranks
    assert capacity.fits(held_bytes(PROBLEM, tokens, tokens, training=training))
    assert not capacity.fits(held_bytes(PROBLEM, tokens + 1, tokens + 1, training=training))


@pytest.mark.parametrize("training", [False, True])
def test_the_fewest_ranks_fit_and_one_less_does_not(training):
    capacity = Capacity.parse("141GB")
    ranks = fewest_ranks(PROBLEM, capacity, training=training)
    assert longest_sequence(PROBLEM, capacity, ranks=ranks, training=training) >= 10**9
    assert longest_sequence(PROBLEM, capacity, ranks=ranks - 1, training=training) < 10**9
