"""Pushed heads give what the all-to-all gives: for every mask, in any order of pushes, and after a call that raised."""

import pytest

from .test_pushed import check
from .test_strategies import BLOCKS, EXACT, FACTORS, SEQLEN, sizes

GQA_AND_MHA = ((8, 2), (8, 8))


@pytest.mark.parametrize("kind", FACTORS)
@sizes(2, 4)
def test_every_pattern(world, kind):
    for heads in GQA_AND_MHA:
        assert check(world, "ulysses", {"ulysses": world.size}, kind, "contiguous", heads)


@sizes(2, 4)
def test_ranks_with_nothing_to_see_and_fewer_tokens_than_ranks(world):
    for kind, seqlen in (("gappy", SEQLEN), ("empty", 10), ("causal", 3), ("full", 1)):
        assert check(world, "ulysses", {"ulysses": world.size}, kind, "contiguous", (8, 2), seqlen=seqlen)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@sizes(2, 4)
def test_gradients_of_shared_heads_are_summed_in_float32(world, dtype):
    for heads in GQA_AND_MHA:
        assert check(world, "ulysses", {"ulysses": world.size}, "full", "contiguous", heads, dtype=dtype)


@pytest.mark.parametrize("mask_heads", [1, 8])
@pytest.mark.parametrize("kind", BLOCKS)
@sizes(2)
def test_heads_of_block_sparse_masks(world, kind, mask_heads):
    factors = tuple({**BLOCKS[kind], "heads": mask_heads}.items())
    case = ("ulysses", (("ulysses", 2),), kind, SEQLEN, factors, "contiguous", (8, 4))
    assert world.run("by_transports", *case) == [[0.0] * 5] * 2


@pytest.mark.parametrize("way", ["kept", "exchanged", "differentiable"])
@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [
        ("ulysses", {"ulysses": 4}),
        ("usp", {"ring": 2, "ulysses": 2}),
        ("loongtrain", {"outer": 1, "inner": 2, "heads": 2}),
    ],
)
@sizes(4)
def test_the_methods_of_a_strategy(world, strategy, mesh, way):
    for kind in ("causal_document", "gappy"):
        case = (strategy, tuple(mesh.items()), kind, SEQLEN, tuple(FACTORS.get(kind, {}).items()), "contiguous", (8, 2))
        for errors in world.run("worst", *case, way=way, transport="copy_engine"):
            assert all(error <= EXACT for error in errors.values()), errors


@sizes(2, 4)
def test_pushes_end_in_any_order(world):
    case = ("ulysses", (("ulysses", world.size),), "causal", (), "contiguous", (8, 2))
    assert all(world.run("in_any_order", *case, seeds=(0, 1, 2, 3)))


@pytest.mark.parametrize("kinds", [[("causal", ())] * 3, [("causal", ()), ("full", ()), ("causal", ())]])
@sizes(2, 4)
def test_layers_share_a_plan_and_plans_share_a_window(world, kinds):
    case = ("ulysses", (("ulysses", world.size),), kinds, "contiguous", (8, 8))
    by_transport = [world.run("layers_in_flight", *case, transport) for transport in ("copy_engine", "collectives")]
    assert by_transport[0] == by_transport[1]


@sizes(2, 4)
def test_lengths_change_from_call_to_call(world):
    for found in world.run("changing_lengths", world.size):
        assert max(found) <= EXACT


@pytest.mark.parametrize("most", [1, 2])
@sizes(4)
def test_rows_of_many_ranges_are_put_in_order_where_they_arrive(world, most):
    assert max(world.run("heads_in_many_ranges", 4, most)) <= EXACT


@pytest.mark.sampled(2)
@pytest.mark.parametrize("on", ["forward", "backward"])
@pytest.mark.parametrize(
    ("world", "strategy", "axes"),
    [
        (2, "ulysses", (("ulysses", 2),)),
        (2, "ring_p2p", (("ring", 2),)),
        (2, "ring_all_gather", (("ring", 2),)),
        (4, "usp", (("ring", 2), ("ulysses", 2))),
        (4, "loongtrain", (("outer", 2), ("inner", 1), ("heads", 2))),
    ],
    indirect=["world"],
)
def test_a_call_after_one_that_raised_is_right(world, strategy, axes, on):
    for raised, error in world.run("calls_that_raise", world.size, strategy, axes, on):
        assert raised == ["a test's"] * 3
        assert error <= EXACT
