"""longca.prefetch under a strategy: ranks plan alone, and start collectives in their calls."""

import pytest

from .test_strategies import EXACT, sizes

OF_SEVERAL_AXES = [
    ("usp", (("ring", 2), ("ulysses", 2))),
    ("loongtrain", (("outer", 2), ("inner", 1), ("heads", 2))),
    ("loongtrain", (("outer", 1), ("inner", 2), ("heads", 2))),
]


@pytest.mark.parametrize(("placement", "transport"), [("auto", "collectives"), ("contiguous", "copy_engine")])
@sizes(2)
def test_a_call_finds_the_plan_that_the_side_thread_made(world, placement, transport):
    for strategy in ("ulysses", "ring_p2p", "ring_all_gather"):
        for found in world.run("prefetched", 2, strategy, placement, transport):
            assert {plans for plans, _, _ in found} == {0}
            assert max(error for _, error, _ in found) <= EXACT
            assert all(done for *_, done in found) or transport == "copy_engine"


@pytest.mark.parametrize(("kind", "transport"), [("causal_document", "copy_engine"), ("blocks", "collectives")])
@sizes(4)
def test_strategies_of_several_axes_and_block_sparse_masks_are_planned_ahead(world, kind, transport):
    for strategy, axes in (*OF_SEVERAL_AXES, ("ring_p2p", (("ring", 4),))):
        for made, error in world.run("prefetched_along", axes, strategy, kind, transport):
            assert made == [0] * 4
            assert error <= EXACT


@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p", "auto"])
@sizes(2)
def test_a_layout_of_several_masks_finds_their_placement(world, strategy):
    found = world.run("placed_ahead", 2, strategy)
    assert [(made, choices) for made, _, choices in found] == [(0, 5)] * 2
    assert found[0][1] == found[1][1]
