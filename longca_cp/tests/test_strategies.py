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
BLOCKS = {
    "uniform_block_sparse": {"block": 16, "kept": 0.4, "seed": 1},
    "variable_block_sparse": {"boundaries": (0, 5, 6, 30, 57, 101), "kept": 0.4, "seed": 2},
}
#: Meshes of each strategy by the number of ranks.
MESHES = {
    "ulysses": {n: [{"ulysses": n}] for n in (1, 2, 3, 4, 8)},
    "ring_p2p": {n: [{"ring": n}] for n in (1, 2, 3, 4, 8)},
    "ring_all_gather": {n: [{"ring": n}] for n in (1, 2, 3, 4, 8)},
    "usp": {n: [{"ring": r, "ulysses": n // r}] for n, r in {1: 1, 2: 2, 3: 3, 4: 2, 8: 2}.items()},
    "loongtrain": {
        n: [dict(zip(("outer", "inner", "heads"), sizes, strict=True)) for sizes in meshes]
        for n, meshes in {
            1: [(1, 1, 1)],
            2: [(2, 1, 1)],
            3: [(1, 3, 1)],
            4: [(2, 2, 1), (1, 2, 2)],
            8: [(2, 2, 2), (2, 4, 1)],
        }.items()
    },
}
#: GQA and MHA that the number of ranks divides. With 4 ranks of ulysses and GQA, ranks share KV heads.
HEADS = {n: ((6, 3), (3, 3)) if n == 3 else ((8, 2), (8, 8)) for n in range(1, 9)}

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


def check(world, strategy, mesh, cases):
    """Compares cases (kind, placement, heads, more) with one process, all of them in one job."""
    asked = []
    for kind, placement, heads, more in cases:
        given = {"seqlen": SEQLEN, "factors": FACTORS.get(kind, {}), **more}
        given["factors"] = tuple(given["factors"].items())
        asked.append({"kind": kind, "placement": placement, "heads": heads, **given})
    for rank, found in enumerate(world.run("worst_of", strategy, tuple(mesh.items()), asked)):
        for case, errors in zip(asked, found, strict=True):
            wrong = {name: error for name, error in errors.items() if not error <= case.get("most", EXACT)}
            assert not wrong, f"{case}, rank {rank}: {wrong}"


@pytest.mark.parametrize("transport", ["collectives", "copy_engine"])
@meshes(1, 2, 3, 4, 8, exhaustive=(1, 8))
def test_every_pattern_by_each_transport(world, strategy, mesh, transport):
    """Each pattern has another placement, so that every placement meets several patterns."""
    gqa, mha = HEADS[world.size]
    placements, cases = registry().strategy(strategy).placements, []
    for turn, kind in enumerate(FACTORS):
        known = [name for name in placements if "document" not in name or "documents" in FACTORS[kind]]
        if world.size == 4 or turn % 3 == 1:
            cases.append((kind, known[turn % len(known)], mha if turn % 4 == 3 else gqa, {"transport": transport}))
    check(world, strategy, mesh, cases)


@pytest.mark.parametrize("transport", ["collectives", "copy_engine"])
@meshes(2, 4)
def test_ranks_with_nothing_to_see_fewer_tokens_than_ranks_and_blocks(world, strategy, mesh, transport):
    placement, more = some_placement(strategy), {"transport": transport}
    few = (("gappy", SEQLEN), ("empty", 10), ("causal", 3), ("full", 1))
    cases = [(kind, placement, (8, 2), {"seqlen": seqlen, **more}) for kind, seqlen in few]
    for kind, mask_heads in (("uniform_block_sparse", 4), ("variable_block_sparse", 8), ("uniform_block_sparse", 1)):
        factors = {**BLOCKS[kind], "heads": mask_heads}
        cases += [(kind, each, (8, 4), {"factors": factors, **more}) for each in {"contiguous", placement}]
    check(world, strategy, mesh, cases)


@meshes(2, 4)
def test_trees(world, strategy, mesh):
    tree = {"parents": (-1, 0, 1, 1, 0, -1, 5, 5), "lengths": (20, 11, 1, 23, 7, 9, 19, 11)}
    check(world, strategy, mesh, [("tree", each, (8, 2), {"factors": tree}) for each in ("contiguous", "auto")])


@pytest.mark.parametrize("transport", ["collectives", "copy_engine"])
@meshes(2, 4)
def test_sinks_belong_to_the_whole_softmax(world, strategy, mesh, transport):
    blocks = tuple({**BLOCKS["uniform_block_sparse"], "heads": 8}.items())
    documents = tuple(FACTORS["causal_document"].items())
    for kind, factors in (("causal_document", documents), ("gappy", ()), ("uniform_block_sparse", blocks)):
        asked = strategy, tuple(mesh.items()), kind, factors, some_placement(strategy), transport
        for found in world.run("with_sinks", *asked):
            assert max(found) <= EXACT, (kind, found)
    for sent, without in world.run("sent_with_sinks", strategy, tuple(mesh.items()), transport):
        assert sent == without  # the backward exchanges nothing again


@pytest.mark.parametrize("transport", ["collectives", "copy_engine"])
@meshes(2, 4)
def test_values_of_another_width(world, strategy, mesh, transport):
    more, placement = {"transport": transport, "dims": (24, 16)}, some_placement(strategy)
    cases = [(kind, placement, (8, 2), more) for kind in ("causal_document", "gappy")]
    cases += [("full", placement, (8, 8), {**more, "dims": (8, 16), "way": "exchanged"})]
    check(world, strategy, mesh, cases)


@meshes(4)
def test_the_methods_of_a_strategy_and_pairs_of_kernels(world, strategy, mesh):
    cases = [
        (kind, some_placement(strategy), (8, 2), {"way": way, "transport": transport})
        for kind, way, transport in (
            ("causal_document", "kept", "collectives"),
            ("causal_document", "exchanged", "copy_engine"),
            ("full", "by_nccl", "collectives"),
        )
    ]
    cases += [("causal_document", "auto", (8, 2), {"kernel": kernel}) for kernel in ("naive+sdpa", "sdpa+naive")]
    check(world, strategy, mesh, cases)


@meshes(2, 4)
def test_float32_is_as_exact_as_in_one_process_and_bfloat16_is_summed_in_float32(world, strategy, mesh):
    for kind, dtype in (("causal_document", "float32"), ("full", "bfloat16")):
        case = (kind, SEQLEN, tuple(FACTORS[kind].items()))
        alone = world.run("own_error", *case, (8, 2), dtype)[0]
        for transport in ("collectives", "copy_engine"):
            asked = (*case, some_placement(strategy), (8, 2))
            for errors in world.run("worst", strategy, tuple(mesh.items()), *asked, dtype=dtype, transport=transport):
                assert all(errors[name] <= 2 * alone[name] + 1e-7 for name in alone), (errors, alone)


@pytest.mark.parametrize(
    ("strategy", "mesh", "order"),
    [
        ("usp", {"ring": 2, "ulysses": 2}, ("ulysses", "ring")),
        ("loongtrain", {"outer": 2, "inner": 2, "heads": 1}, ("inner", "heads", "outer")),
    ],
)
@sizes(4)
def test_the_order_of_a_meshs_dims_only_moves_ranks(world, strategy, mesh, order):
    check(world, strategy, mesh, [("causal_document", "zigzag", (8, 2), {"order": order})])


@meshes(2)
def test_pushes_are_counted_and_can_be_repeated(world, strategy, mesh):
    moves = [world.run("pushed_again", strategy, tuple(mesh.items()), "full", ()) for _ in "ab"]
    for sent, same in (each for ranks in moves for each in ranks):
        assert {kind for kind, size in sent.items() if size} == {"push"}
        assert sent["push"] >= 20 * 2 * 2 * 8 * 8, "keys and values of 20 tokens, or half of the heads of more tensors"
        assert same


@meshes(2)
def test_a_selective_checkpoint_computes_and_sends_attention_once(world, strategy, mesh):
    for with_sinks in (False, True):
        asked = strategy, tuple(mesh.items()), "shared_question", (("documents", (9, 6, 21, 4)),), with_sinks
        for plain, again, selective in world.run("checkpointed", *asked):
            assert selective == plain
            assert again[2]
            assert again[0] > plain[0] > 0
            assert again[1] > plain[1] > 0
