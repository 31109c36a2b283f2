"""Every strategy's results equal the results of one process: outputs, log-sum-exps and gradients, for every mask."""

import pytest

from longca import registry

SEQLEN = 101
#: A mask of every static pattern, with documents that no number of ranks divides.
FACTORS = {
    "full": {},
    "causal": {},
    "full_sliding_window": {"window": 7},
    "causal_sliding_window": {"window": 19},
    "full_document": {"documents": (30, 1, 63, 7)},
    "causal_document": {"documents": (30, 1, 63, 7)},
    "block_causal_document": {"documents": (47, 2, 52), "block": 8},
    "prefix_lm_causal": {"prefix": 37},
    "prefix_lm_document": {"documents": (47, 2, 52), "prefix": 15},
    "shared_question": {"documents": (29, 31, 1, 40)},
    "global_sliding_window": {"window": 6, "global_tokens": 5},
    "causal_blockwise": {"documents": (29, 31, 1, 40)},
}
DOCUMENTS = [name for name, factors in FACTORS.items() if "documents" in factors]
#: Meshes of each strategy by the number of ranks.
MESHES = {
    "ulysses": {n: [{"ulysses": n}] for n in (1, 2, 3, 4, 6, 8)},
    "ring_p2p": {n: [{"ring": n}] for n in (1, 2, 3, 4, 6, 8)},
    "ring_all_gather": {n: [{"ring": n}] for n in (1, 2, 3, 4, 6, 8)},
    "usp": {
        n: [{"ring": r, "ulysses": n // r} for r in sizes]
        for n, sizes in {1: [1], 2: [1, 2], 3: [3], 4: [2], 6: [3, 2], 8: [2, 4]}.items()
    },
    "loongtrain": {
        n: [dict(zip(("outer", "inner", "heads"), sizes, strict=True)) for sizes in meshes]
        for n, meshes in {
            1: [(1, 1, 1)],
            2: [(2, 1, 1)],
            3: [(1, 3, 1)],
            4: [(2, 2, 1), (1, 2, 2)],
            6: [(3, 2, 1), (2, 1, 3)],
            8: [(2, 2, 2), (2, 4, 1)],
        }.items()
    },
}
#: GQA and MHA that the number of ranks divides; with 4 ranks of ulysses and GQA, ranks share KV heads.
HEADS = {n: ((6, 3), (3, 3)) if n == 3 else ((12, 6), (6, 6)) if n == 6 else ((8, 2), (8, 8)) for n in range(1, 9)}

#: As exact as sums of a hundred terms are in float64.
EXACT = 2e-13


def meshes(*ranks, exhaustive=()):
    """(world, strategy, mesh) of each number of ranks. Tests of one number stay on one worker, with their world.

    Numbers of ranks in `exhaustive` are those of exhaustive tests.
    """
    return pytest.mark.parametrize(
        ("world", "strategy", "mesh"),
        [
            pytest.param(
                n,
                strategy,
                mesh,
                id=f"{n}-{strategy}-{'x'.join(map(str, mesh.values()))}",
                marks=[group(n), *[pytest.mark.exhaustive] * (n in exhaustive)],
            )
            for n in ranks
            for strategy, by_size in MESHES.items()
            for mesh in by_size[n]
        ],
        indirect=["world"],
    )


def sizes(*ranks):
    """A world of each number of ranks."""
    return pytest.mark.parametrize("world", [pytest.param(n, marks=group(n)) for n in ranks], indirect=True)


def group(ranks):
    return pytest.mark.xdist_group(f"world-{ranks}")


def some_placement(strategy):
    """A placement that is not the plainest, where there is one."""
    placements = registry().strategy(strategy).placements
    return "zigzag" if "zigzag" in placements else placements[0]


def check(world, strategy, mesh, kind, placement, heads, **more):
    """Runs a case, and says whether there is a layout for it."""
    seqlen = more.pop("seqlen", SEQLEN)
    factors = tuple(more.pop("factors", FACTORS.get(kind, {})).items())
    found = world.run("worst", strategy, tuple(mesh.items()), kind, seqlen, factors, placement, heads, **more)
    if isinstance(found[0], str):
        assert placement in ("zigzag_document", "whole_documents"), found[0]
        assert kind not in DOCUMENTS
        assert "documents" in found[0]
        return False
    for rank, errors in enumerate(found):
        wrong = {name: error for name, error in errors.items() if not error <= EXACT}
        assert not wrong, f"{kind}, {placement}, heads {heads}, rank {rank}: {wrong}"
    return True


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", FACTORS)
@meshes(1, 2, 3, 4, exhaustive=(2,))
def test_every_pattern_and_placement(world, strategy, mesh, kind):
    gqa, mha = HEADS[world.size]
    placements = registry().strategy(strategy).placements
    ran = [placement for placement in placements if check(world, strategy, mesh, kind, placement, gqa)]
    assert len(ran) >= len(placements) - 2
    assert check(world, strategy, mesh, kind, placements[0], mha)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["causal", "shared_question", "prefix_lm_document"])
@meshes(6, 8, exhaustive=(8,))
def test_larger_worlds(world, strategy, mesh, kind):
    gqa, mha = HEADS[world.size]
    assert check(world, strategy, mesh, kind, some_placement(strategy), gqa)
    assert check(world, strategy, mesh, kind, "contiguous", mha)


@meshes(2, 4)
def test_ranks_with_nothing_to_see_and_fewer_tokens_than_ranks(world, strategy, mesh):
    for kind, seqlen in (("gappy", SEQLEN), ("empty", 10), ("causal", 3), ("full", 1)):
        for placement in ("contiguous", some_placement(strategy)):
            assert check(world, strategy, mesh, kind, placement, (8, 2), seqlen=seqlen)


@pytest.mark.parametrize("way", ["kept", "exchanged", "differentiable"])
@meshes(4)
def test_the_methods_of_a_strategy(world, strategy, mesh, way):
    for kind in ("causal_document", "gappy"):
        assert check(world, strategy, mesh, kind, some_placement(strategy), (8, 2), way=way)


@meshes(2)
def test_pushes_are_counted_and_can_be_repeated_alone(world, strategy, mesh):
    moves = [world.run("pushed_again", strategy, tuple(mesh.items()), "full", ()) for _ in "ab"]
    for sent, same in (each for ranks in moves for each in ranks):
        assert {kind for kind, size in sent.items() if size} == {"push"}
        assert sent["push"] >= 20 * 2 * 2 * 8 * 8, "keys and values of 20 tokens, or half of the heads of more tensors"
        assert same


@pytest.mark.parametrize("kind", ["full", "causal", "causal_document"])
@meshes(2, 4)
def test_steps_may_differ_in_their_kernels(world, strategy, mesh, kind):
    about = strategy, tuple(mesh.items()), kind, SEQLEN, tuple(FACTORS[kind].items()), some_placement(strategy), (8, 2)
    for errors, steps, taken in world.run("mixed", *about):
        assert all(error <= EXACT for error in errors.values())
        assert len(set(taken)) == min(steps, 4), taken


@pytest.mark.parametrize("kernel", ["naive+sdpa", "sdpa+naive"])
@meshes(2)
def test_a_forward_and_a_backward_kernel_that_are_chosen_apart(world, strategy, mesh, kernel):
    for kind, placement in (("causal_document", some_placement(strategy)), ("gappy", "auto")):
        assert check(world, strategy, mesh, kind, placement, (8, 2), kernel=kernel)


@meshes(4)
def test_full_masks_in_the_order_of_nccl(world, strategy, mesh):
    assert check(world, strategy, mesh, "full", "contiguous", (8, 2), way="by_nccl")


@meshes(2, 4)
def test_float32_is_as_exact_as_in_one_process(world, strategy, mesh):
    kind, heads = "causal_document", (8, 2)
    case = (kind, SEQLEN, tuple(FACTORS[kind].items()))
    alone = world.run("own_error", *case, heads, "float32")[0]
    for placement in {"contiguous", some_placement(strategy)}:
        for errors in world.run("worst", strategy, tuple(mesh.items()), *case, placement, heads, dtype="float32"):
            assert all(errors[name] <= 2 * alone[name] + 1e-7 for name in alone), (errors, alone)


@meshes(2, 4)
def test_bfloat16_is_summed_in_float32(world, strategy, mesh):
    case = ("full", SEQLEN, ())
    alone = world.run("own_error", *case, (8, 2), "bfloat16")[0]
    for errors in world.run("worst", strategy, tuple(mesh.items()), *case, "contiguous", (8, 2), dtype="bfloat16"):
        assert all(errors[name] <= 2 * alone[name] + 1e-7 for name in alone), (errors, alone)


@pytest.mark.parametrize(
    ("strategy", "mesh", "order"),
    [
        ("usp", {"ring": 2, "ulysses": 2}, ("ulysses", "ring")),
        ("loongtrain", {"outer": 2, "inner": 1, "heads": 2}, ("heads", "outer", "inner")),
        ("loongtrain", {"outer": 2, "inner": 2, "heads": 1}, ("inner", "heads", "outer")),
    ],
)
@sizes(4)
def test_the_order_of_a_meshs_dims_only_moves_ranks(world, strategy, mesh, order):
    assert check(world, strategy, mesh, "causal_document", "zigzag", (8, 2), order=order)


BLOCKS = {
    "uniform_block_sparse": {"block": 16, "kept": 0.4, "seed": 1},
    "variable_block_sparse": {"boundaries": (0, 5, 6, 30, 57, 101), "kept": 0.4, "seed": 2},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mask_heads", [1, 4, 8])
@pytest.mark.parametrize("kind", BLOCKS)
@meshes(2, 4)
def test_block_sparse_masks(world, strategy, mesh, kind, mask_heads):
    factors = {**BLOCKS[kind], "heads": mask_heads}
    placements = ("contiguous",) if strategy == "ulysses" else ("contiguous", "zigzag", "balanced")
    for placement in placements:
        assert check(world, strategy, mesh, kind, placement, (8, 4), factors=factors)


@pytest.mark.parametrize(("kernel", "way"), [("naive+sdpa", "attention"), ("naive", "kept"), ("naive", "by_nccl")])
@meshes(2)
def test_block_sparse_masks_by_pairs_and_by_a_strategys_methods(world, strategy, mesh, kernel, way):
    factors = {**BLOCKS["uniform_block_sparse"], "heads": 4}
    for kept in (0.1, 1.0):
        given = {"factors": {**factors, "kept": kept}, "kernel": kernel, "way": way}
        assert check(world, strategy, mesh, "uniform_block_sparse", some_placement(strategy), (8, 4), **given)
