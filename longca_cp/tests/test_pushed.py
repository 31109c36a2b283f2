"""Pushed rings and gathers give what collectives give: for every mask and placement, and in every order of pushes."""

from itertools import pairwise

import pytest

from longca import masks, registry
from longca.loading import load_object
from longca.manifests import Device, Problem, Transport

from .test_strategies import BLOCKS, DOCUMENTS, EXACT, FACTORS, HEADS, SEQLEN, sizes, some_placement

#: Meshes by the number of ranks.
MESHES = {
    "ring_p2p": {2: [{"ring": 2}], 4: [{"ring": 4}]},
    "ring_all_gather": {2: [{"ring": 2}], 4: [{"ring": 4}]},
    "usp": {2: [{"ring": 2, "ulysses": 1}], 4: [{"ring": 2, "ulysses": 2}]},
    "loongtrain": {
        2: [{"outer": 2, "inner": 1, "heads": 1}],
        4: [{"outer": 2, "inner": 2, "heads": 1}, {"outer": 1, "inner": 2, "heads": 2}],
    },
}


def meshes(*ranks, exhaustive=()):
    """(world, strategy, mesh) of each number of ranks. Those in `exhaustive` are of exhaustive tests."""
    return pytest.mark.parametrize(
        ("world", "strategy", "mesh"),
        [
            pytest.param(
                n,
                strategy,
                mesh,
                id=f"{n}-{strategy}-{'x'.join(map(str, mesh.values()))}",
                marks=[pytest.mark.xdist_group(f"world-{n}"), *[pytest.mark.exhaustive] * (n in exhaustive)],
            )
            for n in ranks
            for strategy, by_size in MESHES.items()
            for mesh in by_size[n]
        ],
        indirect=["world"],
    )


def check(world, strategy, mesh, kind, placement, heads, **more):
    """Runs a case, and says whether there is a layout for it.

    A ring adds up in one order, and so has equal bits. Chunks of heads may not: the kernel computes fewer at a time.
    """
    seqlen, factors = more.pop("seqlen", SEQLEN), tuple(more.pop("factors", FACTORS.get(kind, {})).items())
    chunked = strategy == "ring_all_gather" or mesh.get({"usp": "ulysses", "loongtrain": "heads"}.get(strategy), 1) > 1
    most = more.pop("most", EXACT if chunked else 0.0)
    case = (strategy, tuple(mesh.items()), kind, seqlen, factors, placement, heads)
    found = world.run("by_transports", *case, **more)
    if isinstance(found[0], str):
        assert placement == "zigzag_document", found[0]
        assert kind not in DOCUMENTS
        return False
    for rank, errors in enumerate(found):
        assert all(error <= most for error in errors), f"{kind}, {placement}, heads {heads}, rank {rank}: {errors}"
    return True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", FACTORS)
@meshes(2, 4, exhaustive=(2,))
def test_every_pattern_and_placement(world, strategy, mesh, kind):
    gqa, mha = HEADS[world.size]
    for placement in ("contiguous", "zigzag", "zigzag_document", "balanced"):
        check(world, strategy, mesh, kind, placement, gqa)
    assert check(world, strategy, mesh, kind, "contiguous", mha)


@pytest.mark.sampled(3)
@meshes(2, 4)
def test_ranks_with_nothing_to_see_and_fewer_tokens_than_ranks(world, strategy, mesh):
    for kind, seqlen in (("gappy", SEQLEN), ("empty", 10), ("causal", 3), ("full", 1)):
        for placement in ("contiguous", some_placement(strategy)):
            assert check(world, strategy, mesh, kind, placement, (8, 2), seqlen=seqlen)


@pytest.mark.parametrize("kind", BLOCKS)
@meshes(2, 4)
def test_block_sparse_masks(world, strategy, mesh, kind):
    factors = {**BLOCKS[kind], "heads": 8}
    assert check(world, strategy, mesh, kind, "contiguous", (8, 4), factors=factors)


@pytest.mark.parametrize("most_runs", [1, 3])
@pytest.mark.parametrize("kind", ["full", "causal_document", "causal_sliding_window"])
@sizes(4)
def test_rows_of_many_runs_are_packed(world, kind, most_runs):
    for placement in ("zigzag", "balanced"):
        assert check(world, "ring_all_gather", {"ring": 4}, kind, placement, (8, 2), most_runs=most_runs)


@meshes(4)
def test_half_precision_is_summed_in_float32(world, strategy, mesh):
    # A sum of a gather rounds once, in another order than a reduce-scatter.
    most = 2**-7 * 8 if strategy == "ring_all_gather" else 0.0
    assert check(world, strategy, mesh, "full", "contiguous", (8, 2), dtype="bfloat16", most=most)


@pytest.mark.sampled(3)
@meshes(2, 4)
def test_layers_in_flight_share_windows(world, strategy, mesh):
    kinds = [("causal", ()), ("causal_sliding_window", (("window", 9),)), ("causal", ()), ("full", ())]
    case = (strategy, tuple(mesh.items()), kinds, "zigzag", (8, 2))
    for pushed, wanted in zip(
        world.run("layers_in_flight", *case, "copy_engine"),
        world.run("layers_in_flight", *case, "collectives"),
        strict=True,
    ):
        for mine, theirs in zip(pushed, wanted, strict=True):
            assert mine == pytest.approx(theirs, rel=0, abs=1e-11)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["full", "causal_document"])
@meshes(4)
def test_any_order_of_pushes_gives_equal_bits(world, strategy, mesh, kind):
    factors = (("documents", (9, 30, 1, 20)),) if kind == "causal_document" else ()
    case = (strategy, tuple(mesh.items()), kind, factors, "zigzag", (8, 4))
    assert world.run("in_any_order", *case, seeds=range(6)) == [True] * 4


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
def test_bytes_of_a_ring(world):
    # The parts of gradients go straight home: 3 of them, and no sum that goes all the way round.
    assert pushed(world, "ring_p2p", {"ring": 4}, "full") == [[3 * PAIR, 6 * PAIR]] * 4
    # A rank's keys go only to ranks with later tokens, and parts of their gradients come back.
    found = pushed(world, "ring_p2p", {"ring": 4}, "causal")
    assert found == [[(3 - rank) * PAIR, (3 - rank) * PAIR + rank * PAIR] for rank in range(4)]
    assert pushed(world, "ring_p2p", {"ring": 4}, "full_document", documents=(24,) * 4) == [[0, 0]] * 4


@sizes(4)
def test_bytes_of_a_gather(world):
    assert pushed(world, "ring_all_gather", {"ring": 4}, "full") == [[3 * PAIR, 6 * PAIR]] * 4
    assert pushed(world, "ring_all_gather", {"ring": 4}, "full_document", documents=(24,) * 4) == [[0, 0]] * 4
    # A rank's last 5 tokens are needed by the next, and their gradients come back.
    found, five = pushed(world, "ring_all_gather", {"ring": 4}, "causal_sliding_window", window=5), PAIR * 5 // 24
    assert found == [[five, five], [five, 2 * five], [five, 2 * five], [0, five]]


@sizes(4)
def test_bytes_of_a_double_ring(world):
    mesh = {"outer": 2, "inner": 2, "heads": 1}
    # Parts go home in the inner ring of each window, and the other window's sum in the outer one.
    assert pushed(world, "loongtrain", mesh, "full") == [[3 * PAIR, 3 * PAIR + 2 * PAIR + PAIR]] * 4


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
            said = sum(move.sent for phase in phases for move in phase.moves)
            # A ring counts its empty steps.
            assert said == bytes_pushed or (strategy == "ring_p2p" and kind != "full" and said > bytes_pushed)


@sizes(2)
def test_plans_share_inboxes_that_are_long_enough(world):
    asked = [(100, 1), (80, 1), (100, 3), (60, 2), (120, 1), (120, 1), (0, 2), (5, 0)]
    assert world.run("inboxes", 2, asked) == [[0, 0, 2, 2, 4, 4, None, None]] * 2


@sizes(2)
def test_ranks_take_an_inbox_that_lives_on_all_of_them(world):
    assert world.run("living_inbox", 2) == [True, True]


@sizes(2)
def test_masks_that_need_other_rows_at_each_step_share_windows(world):
    # Rank 1 needs 21 to 39 of 40 rows, in steps of 5, and returns 1 to 19 of 20, in steps of 3.
    for lengths, error in world.run("windows_of_a_stream", 2, range(1, 20)):
        assert lengths == 4 + 7
        assert error <= EXACT
