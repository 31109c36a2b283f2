import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import UnsupportedError
from longca.manifests.resolve import step_problems
from longca.manifests.step_cuts import rank_areas, step_areas
from longca_cp import LOONGTRAIN, RING_ALL_GATHER, RING_P2P, ULYSSES, USP, layouts
from longca_cp.block_placement import unit_bounds
from longca_cp.layouts import split_heads
from longca_cp.placement import PLACEMENTS, place

from .cases import STATIC, block_masks, positions, problem, static_mask

STRATEGIES = {manifest.name: manifest for manifest in (ULYSSES, RING_P2P, RING_ALL_GATHER, USP, LOONGTRAIN)}


def meshes(strategy, ranks):
    """Every way to spread ranks over a strategy's axes."""
    axes = STRATEGIES[strategy].axes
    if len(axes) == 1:
        return [{axes[0]: ranks}]
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    if len(axes) == 2:
        return [{axes[0]: n, axes[1]: ranks // n} for n in divisors]
    return [
        {axes[0]: a, axes[1]: b, axes[2]: ranks // a // b} for a in divisors for b in divisors if ranks // a % b == 0
    ]


def lay_out(strategy, asked, sizes, placement):
    return getattr(layouts, strategy)(asked, sizes, placement)


def heads_for(sizes):
    """GQA whose heads divide among the ranks that split them: with KV heads of their own, or replicated."""
    ranks = max(sizes.get("ulysses", 1), sizes.get("heads", 1))
    return [(2 * ranks, ranks), (2 * ranks, 1)]


def check(layout, asked):
    """The ranks' steps meet every visible pair of every query head once, on the ranks that hold the queries."""
    dense = asked.concrete_mask.dense()
    tokens = len(dense)
    group = asked.heads_q // asked.num_heads_kv
    met = np.zeros((asked.heads_q, tokens, tokens), np.int8)
    for steps in layout.steps:
        for step in steps:
            q, k = positions(step.q_ranges), positions(step.k_ranges)
            met[slice(*step.heads_q), *np.ix_(q, k)] += 1
            heads = range(*step.heads_q)
            kv = [step.heads_kv[0] + i * (step.heads_kv[1] - step.heads_kv[0]) // len(heads) for i in range(len(heads))]
            assert kv == [head // group for head in heads]
    assert (met[:, dense] == 1).all()
    assert met.max() <= 1
    held = [layout.positions(rank).tolist() for rank in range(layout.world_size)]
    assert sorted(token for shard in held for token in shard) == list(range(tokens))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pattern", STATIC)
def test_every_visible_pair_is_met_once(pattern, strategy, ranks):
    mask = static_mask(pattern)
    for sizes in meshes(strategy, ranks):
        for heads_q, heads_kv in heads_for(sizes):
            asked = problem(mask, heads_q, heads_kv)
            for placement in STRATEGIES[strategy].placements:
                if placement in ("zigzag_document", "whole_documents") and "documents" not in mask.factors:
                    with pytest.raises(UnsupportedError, match="has no documents"):
                        lay_out(strategy, asked, sizes, placement)
                    continue
                layout = lay_out(strategy, asked, sizes, placement)
                assert layout.world_size == ranks
                check(layout, asked)


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_ring_passes_keys_on_from_rank_to_rank(placement, ranks):
    mask = static_mask("shared_question")
    layout = layouts.ring_p2p(problem(mask), {"ring": ranks}, placement)
    assert layout.shards == place(placement, mask, ranks)
    for rank, steps in enumerate(layout.steps):
        assert [step.k_ranges for step in steps] == [layout.shards[(rank - s) % ranks] for s in range(ranks)]
        assert {step.q_ranges for step in steps} == {layout.shards[rank]}
        assert {(step.heads_q, step.heads_kv) for step in steps} == {((0, 8), (0, 2))}


@pytest.mark.parametrize("pattern", STATIC)
def test_a_gather_is_of_the_keys_that_are_seen(pattern):
    mask = static_mask(pattern)
    layout = layouts.ring_all_gather(problem(mask), {"ring": 3}, "zigzag")
    dense = mask.dense()
    for rank, (step,) in enumerate(layout.steps):
        seen = np.flatnonzero(dense[layout.positions(rank)].any(axis=0))
        assert positions(step.k_ranges) == seen.tolist()
        assert step.q_ranges == layout.shards[rank]


def test_a_double_ring_goes_round_its_windows():
    asked = problem(static_mask("causal"))
    layout = layouts.loongtrain(asked, {"outer": 2, "inner": 3, "heads": 2}, "zigzag")
    tokens = place("zigzag", asked.concrete_mask, 6)
    met = [tokens.index(step.k_ranges) for step in layout.steps[2 * 4]]  # group 4 is (1, 1)
    assert met == [4, 3, 5, 1, 0, 2]
    assert layout.steps[2 * 4][0].heads_q == (0, 4)
    assert layout.steps[2 * 4 + 1][0].heads_q == (4, 8)
    for rank, steps in enumerate(layout.steps):
        at = [tokens.index(step.k_ranges) for step in steps]
        for s in range(len(steps)):
            window, turn = divmod(s, 3)
            group = rank // 2
            before = (group // 3 * 3 + (group % 3 - 1) % 3) if turn else ((group // 3 - 1) % 2 * 3 + group % 3)
            source = [tokens.index(step.k_ranges) for step in layout.steps[2 * before]]
            if turn:
                assert at[s] == source[s - 1], "one hop on the inner ring"
            elif window:
                assert at[s] == source[s - 3], "one hop on the outer ring, of what a window began with"


def test_as_many_queries_as_keys():
    rectangle = problem(masks.build("causal", 8, seqlen_k=16))
    for strategy, manifest in STRATEGIES.items():
        sizes = dict.fromkeys(manifest.axes, 1)
        with pytest.raises(UnsupportedError, match=r"this is a causal of 8 × 16 tokens.*as many queries as keys"):
            lay_out(strategy, rectangle, sizes, "contiguous")


def check_blocks(layout, asked):
    """The steps' cuts show every visible pair of every query head once, and their areas are those of the bitmap."""
    mask = asked.concrete_mask
    dense = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k)
    wanted = dense.repeat(asked.heads_q // mask.heads, axis=0)
    met = np.zeros(wanted.shape, np.int8)
    areas = []
    for steps, parts in zip(layout.steps, step_problems(asked, layout), strict=True):
        for step, part in zip(steps, parts, strict=True):
            areas.append(part.concrete_mask.area if part else 0)
            if part:
                shown = part.concrete_mask.dense()
                shown = shown.reshape(-1, *shown.shape[-2:])
                met[slice(*step.heads_q), *np.ix_(positions(step.q_ranges), positions(step.k_ranges))] += shown.repeat(
                    part.heads_q // len(shown), axis=0
                )
    assert (met == wanted).all()
    assert step_areas(asked, layout).tolist() == areas
    assert sum(rank_areas(asked, layout)) == asked.area
    assert sorted(np.concatenate([layout.positions(r) for r in range(layout.world_size)])) == list(range(len(dense[0])))


@given(st.sampled_from(sorted(STRATEGIES)), st.data())
def test_the_steps_of_block_sparse_masks_show_them(strategy, data):
    sizes = {axis: data.draw(st.integers(1, 3)) for axis in STRATEGIES[strategy].axes}
    heads = data.draw(st.sampled_from(heads_for(sizes)))
    asked = problem(data.draw(block_masks((1, *heads))), *heads)
    placement = data.draw(st.sampled_from([name for name in STRATEGIES[strategy].placements if "doc" not in name]))
    parts = math.prod(sizes.get(axis, 1) for axis in ("ring", "outer", "inner"))
    if len(unit_bounds(asked.concrete_mask)) <= parts > 1:
        with pytest.raises(UnsupportedError, match=f"cut for {parts} ranks of a ring.*choose smaller blocks"):
            lay_out(strategy, asked, sizes, placement)
    else:
        check_blocks(lay_out(strategy, asked, sizes, placement), asked)


def test_a_gather_is_of_the_key_blocks_that_some_query_keeps():
    kept = np.eye(8, dtype=bool)
    kept[2, 6] = True
    mask = masks.BlockSparseMask(kept, np.arange(9) * 4, np.arange(9) * 4)
    layout = layouts.ring_all_gather(problem(mask), {"ring": 2}, "contiguous")
    assert [step.k_ranges for (step,) in layout.steps] == [((0, 16), (24, 28)), ((16, 32),)]


# Heads


def split(heads_q, heads_kv, ranks):
    return split_heads(problem(static_mask("causal"), heads_q, heads_kv), ranks, "ulysses")


@pytest.mark.parametrize("ranks", range(1, 13))
@pytest.mark.parametrize(("heads_q", "heads_kv"), [(12, 12), (12, 6), (12, 4), (12, 3), (12, 1), (8, 2), (64, 8)])
def test_a_rank_is_a_smaller_problem_of_the_same_grouping(heads_q, heads_kv, ranks):
    group = heads_q // heads_kv
    try:
        parts = split(heads_q, heads_kv, ranks)
    except UnsupportedError:
        assert heads_q % ranks or (heads_kv % ranks and ranks % heads_kv)
        return
    assert [head for (q0, q1), _ in parts for head in range(q0, q1)] == list(range(heads_q))
    for (q0, q1), (kv0, kv1) in parts:
        local_group = (q1 - q0) // (kv1 - kv0)
        assert (q1 - q0) % (kv1 - kv0) == 0
        assert [kv0 + local // local_group for local in range(q1 - q0)] == [head // group for head in range(q0, q1)]
    assert len({(q1 - q0, kv1 - kv0) for (q0, q1), (kv0, kv1) in parts}) == 1, "one exchange moves as much of each"
