"""Pushes: the orders in which they may end, the windows that calls share, what they move, and calls that raise."""

from itertools import pairwise

import pytest

from longca import masks, registry
from longca.manifests import Device, Problem, Transport
from longca.plugins import load_object

from .test_strategies import EXACT, meshes, sizes

DOCUMENTS = (("documents", (9, 30, 1, 20)),)


@meshes(4)
def test_any_order_of_pushes_gives_equal_bits(world, strategy, mesh):
    for kind, factors in (("full", ()), ("causal_document", DOCUMENTS)):
        placement = "contiguous" if strategy == "ulysses" else "zigzag"
        case = (strategy, tuple(mesh.items()), kind, factors, placement, (8, 4))
        assert world.run("in_any_order", *case, seeds=range(4)) == [True] * 4


@meshes(2, 4)
def test_layers_in_flight_share_windows(world, strategy, mesh):
    kinds = [("causal", ()), ("causal_sliding_window", (("window", 9),)), ("causal", ()), ("full", ())]
    case = (strategy, tuple(mesh.items()), kinds, "contiguous" if strategy == "ulysses" else "zigzag", (8, 2))
    by_transport = (world.run("layers_in_flight", *case, each) for each in ("copy_engine", "collectives"))
    for pushed, wanted in zip(*by_transport, strict=True):
        for mine, theirs in zip(pushed, wanted, strict=True):
            assert mine == pytest.approx(theirs, rel=0, abs=1e-11)


@sizes(4)
def test_rows_of_many_runs_are_packed_and_heads_of_many_ranges_put_in_order(world):
    for placement in ("zigzag", "balanced"):
        for kind, factors in (("causal", ()), ("causal_sliding_window", (("window", 19),))):
            assert max(world.run("gathered_in_few_runs", 4, kind, factors, placement, 1)) <= EXACT
    assert max(world.run("heads_in_many_ranges", 4, 1)) <= EXACT


@sizes(2)
def test_lengths_change_from_call_to_call(world):
    for found in world.run("changing_lengths", world.size):
        assert max(found) <= EXACT


@pytest.mark.parametrize("on", ["forward", "backward"])
@meshes(2)
def test_a_call_after_one_that_raised_is_right(world, strategy, mesh, on):
    for raised, error in world.run("calls_that_raise", world.size, strategy, tuple(mesh.items()), on):
        assert raised == ["a test's"] * 3
        assert error <= EXACT


#: Pushes that bring a kernel its tensors, on each of four ranks: for the first kernel, and for each later one.
BROUGHT = {"ulysses": (3, 3), "ring_p2p": (0, 1), "ring_all_gather": (3, 3)}


@pytest.mark.parametrize("strategy", BROUGHT)
@sizes(4)
def test_pushes_begin_before_the_step_that_needs_them_and_beside_the_one_before(world, strategy):
    mesh = (("ulysses" if strategy == "ulysses" else "ring", 4),)
    first, later = BROUGHT[strategy]
    for directions in world.run("order_of_pushes", strategy, mesh, "full", (16, 8)):
        for begun in directions:
            kernels = [at for at, what in enumerate(begun) if what == "kernel"]
            assert len(kernels) > 1
            for number, at in enumerate(kernels):
                assert begun[:at].count("early") >= first + number * later, f"step {number} of {begun}"
            for before, after in pairwise(kernels):
                assert begun[before:after].count("early") >= later, f"a push is beside each kernel in {begun}"


# Bytes: float32, 96 tokens on 4 ranks (24 each), head dim 8, heads 8:4.
PAIR = 2 * 24 * 4 * 8 * 4  # keys and values of a rank


def pushed(world, strategy, mesh, kind, **factors):
    case = (kind, 96, tuple(factors.items()), "contiguous", (8, 4))
    return world.run("pushed_bytes", strategy, tuple(mesh.items()), *case)


@sizes(4)
def test_bytes_of_pushes(world):
    ring, whole = {"ring": 4}, {"documents": (24,) * 4}
    # The parts of gradients go straight home: 3 of them, and no sum that goes all the way round.
    assert pushed(world, "ring_p2p", ring, "full") == [[3 * PAIR, 6 * PAIR]] * 4
    # A rank's keys go only to ranks with later tokens, and parts of their gradients come back.
    found = pushed(world, "ring_p2p", ring, "causal")
    assert found == [[(3 - rank) * PAIR, (3 - rank) * PAIR + rank * PAIR] for rank in range(4)]
    assert pushed(world, "ring_p2p", ring, "full_document", **whole) == [[0, 0]] * 4
    assert pushed(world, "ring_all_gather", ring, "full") == [[3 * PAIR, 6 * PAIR]] * 4
    assert pushed(world, "ring_all_gather", ring, "full_document", **whole) == [[0, 0]] * 4
    # A rank's last 5 tokens are needed by the next, and their gradients come back.
    found, five = pushed(world, "ring_all_gather", ring, "causal_sliding_window", window=5), PAIR * 5 // 24
    assert found == [[five, five], [five, 2 * five], [five, 2 * five], [0, five]]
    # Parts go home in the inner ring of each window, and the other window's sum in the outer one.
    double = {"outer": 2, "inner": 2, "heads": 1}
    assert pushed(world, "loongtrain", double, "full") == [[3 * PAIR, 3 * PAIR + 2 * PAIR + PAIR]] * 4


@pytest.mark.parametrize("strategy", ["ring_p2p", "ring_all_gather"])
@sizes(4)
def test_schedules_have_the_bytes_of_the_rank_that_pushes_most(world, strategy):
    fields = {"heads_q": 8, "heads_kv": 4, "head_dim": 8, "dtype": "float32", "device": Device("cpu")}
    for kind, factors in (("full", {}), ("causal_sliding_window", {"window": 5})):
        most = [max(each) for each in zip(*pushed(world, strategy, {"ring": 4}, kind, **factors), strict=True)]
        for direction, bytes_pushed in zip(("forward", "backward"), most, strict=True):
            problem = Problem(mask=masks.build(kind, 96, **factors), direction=direction, **fields)
            layout = registry().layout(strategy, problem, {"ring": 4}, "contiguous")
            manifest = registry().strategy(strategy)
            schedule = load_object(manifest, manifest.schedule, "longca-cp")
            phases = schedule(problem, layout, True, Transport.COPY_ENGINE)
            sent = sum(move.sent for phase in phases for move in phase.moves)
            # A ring counts its empty steps.
            assert sent == bytes_pushed or (strategy == "ring_p2p" and kind != "full" and sent > bytes_pushed)


@sizes(2)
def test_plans_share_inboxes_that_are_long_enough_and_live_on_all_ranks(world):
    asked = [(100, 1), (80, 1), (100, 3), (60, 2), (120, 1), (120, 1), (0, 2), (5, 0)]
    assert world.run("inboxes", 2, asked) == [[0, 0, 2, 2, 4, 4, None, None]] * 2
    assert world.run("living_inbox", 2) == [True, True]
