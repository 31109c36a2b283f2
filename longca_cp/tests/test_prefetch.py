"""longca.prefetch under a strategy: ranks plan alone, and start collectives in their calls."""

import pytest

import longca
from longca import masks
from longca.errors import RequestError

from .test_strategies import EXACT, sizes

OF_SEVERAL_AXES = [
    ("usp", (("ring", 2), ("ulysses", 2))),
    ("loongtrain", (("outer", 2), ("inner", 1), ("heads", 2))),
    ("loongtrain", (("outer", 1), ("inner", 2), ("heads", 2))),
]


@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p", "ring_all_gather"])
@sizes(2)
def test_a_call_finds_the_plan_that_the_side_thread_made(world, strategy):
    for found in world.run("prefetched", 2, strategy, "auto", "collectives"):
        plans, errors, done = zip(*found, strict=True)
        assert set(plans) == {0}
        assert max(errors) <= EXACT
        assert all(done)


@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p", "ring_all_gather"])
@sizes(2)
def test_pushes_are_planned_ahead_too(world, strategy):
    for found in world.run("prefetched", 2, strategy, "contiguous", "copy_engine"):
        assert {plans for plans, _, _ in found} == {0}
        assert max(error for _, error, _ in found) <= EXACT


@pytest.mark.parametrize("transport", ["collectives", "copy_engine"])
@pytest.mark.parametrize("kind", ["causal_document", "blocks"])
@pytest.mark.parametrize(("strategy", "axes"), [*OF_SEVERAL_AXES, ("ring_p2p", (("ring", 4),))])
@sizes(4)
def test_strategies_of_several_axes_and_block_sparse_masks_are_planned_ahead(world, strategy, axes, kind, transport):
    for made, error in world.run("prefetched_along", axes, strategy, kind, transport):
        assert made == [0] * 4
        assert error <= EXACT


@sizes(3)
def test_ranks_that_wait_differently_agree_all_the_same(world):
    assert max(world.run("prefetched_together", 3)) <= EXACT


@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p", "auto"])
@sizes(2)
def test_a_layout_of_several_masks_finds_their_placement(world, strategy):
    found = world.run("placed_ahead", 2, strategy)
    assert [(made, choices) for made, _, choices in found] == [(0, 5)] * 2
    assert found[0][1] == found[1][1]


def test_several_masks_without_a_strategy_are_refused():
    weighed = [(masks.build("causal", 40), 1), (masks.build("causal_sliding_window", 40, window=9), 5)]
    with pytest.raises(RequestError, match="several masks share a placement under a strategy"):
        longca.prefetch(weighed, heads=(4, 2), device="cpu")
