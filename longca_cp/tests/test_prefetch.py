"""longca.prefetch under a strategy: ranks plan alone, and start collectives in their calls."""

import pytest

from .test_strategies import EXACT, sizes


@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p", "ring_all_gather"])
@pytest.mark.parametrize("placement", ["contiguous", "auto"])
@sizes(2)
def test_a_call_finds_the_plan_that_the_side_thread_made(world, strategy, placement):
    for found in world.run("prefetched", 2, strategy, placement, "collectives"):
        plans, errors, done = zip(*found, strict=True)
        assert set(plans) == {0}
        assert max(errors) <= EXACT
        assert all(done)


@pytest.mark.parametrize("transport", ["auto", "copy_engine"])
@pytest.mark.parametrize("strategy", ["ulysses", "ring_p2p", "ring_all_gather"])
@sizes(2)
def test_pushes_are_planned_ahead_too(world, strategy, transport):
    for found in world.run("prefetched", 2, strategy, "contiguous", transport):
        assert {plans for plans, _, _ in found} == {0}
        assert max(error for _, error, _ in found) <= EXACT


@sizes(3)
def test_ranks_that_wait_differently_agree_all_the_same(world):
    assert max(world.run("prefetched_together", 3)) <= EXACT
