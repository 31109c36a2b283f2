import pytest

from longca import masks
from longca.manifests import Device, Layout, Offer, Problem, Step
from longca.manifests.step_cuts import imbalance
from longca_advice.nominal import nominal_cost

from ..fake_manifests import fake_manifest

SEQLEN, HALF, HEADS = 4096, 2048, (8, 2)
HALVES = (((0, HALF),), ((HALF, SEQLEN),))
ALL = ((0, SEQLEN),)

#: As the module states them.
MERGE, ARRIVAL, BY_INTERVALS = 400, 1800, 0.8


def kernel(form, **fields):
    offer = {
        "form": form,
        "dtypes": ("bfloat16",),
        "verified_on": ">=8.0",
        "backward": "external",
        "unequal_lengths": True,
    }
    return fake_manifest(Offer(metadata="O(1)", **offer, **fields))


def problem(pattern="causal", **factors):
    mask = masks.build(pattern, SEQLEN, **factors)
    return Problem(mask=mask, heads_q=HEADS[0], heads_kv=HEADS[1], device=Device("cuda", (9, 0)))


def step(q, k):
    return Step(q, k, (0, HEADS[0]), (0, HEADS[1]))


def one_step_each(*keys):
    return Layout(tuple((step(half, k),) for half, k in zip(HALVES, keys, strict=True)), HALVES)


RING = Layout(tuple((step(HALVES[r], HALVES[r]), step(HALVES[r], HALVES[1 - r])) for r in range(2)), HALVES)


def tiles(count):
    """Scores of some tiles, of all query heads."""
    return count * 128 * 128 * HEADS[0]


TRIANGLE, SQUARE = tiles(16 * 17 // 2), tiles(16 * 16)


def test_partial_results_are_merged_and_ranks_wait_for_one_another():
    merge = MERGE * HALF * HEADS[0]
    arrival = ARRIVAL * HALF * HEADS[1]
    assert arrival < SQUARE + merge, "keys arrive behind the compute here"
    # Rank 0 has one step, so nothing to merge, and waits in the second while rank 1 computes.
    assert nominal_cost([kernel("varlen")], problem(), RING) == TRIANGLE + SQUARE + 2 * merge


def test_what_arrives_late_is_waited_for():
    asked = problem("full_document", documents=[HALF, HALF])
    arrival = ARRIVAL * HALF * HEADS[1]
    assert nominal_cost([kernel("varlen")], asked, RING) == SQUARE + arrival


def test_what_the_offer_makes_of_the_mask():
    layout = one_step_each(HALVES[0], ALL)
    busiest = SQUARE + TRIANGLE
    assert nominal_cost([kernel("row_intervals")], problem(), layout) == pytest.approx(busiest / BY_INTERVALS)
    assert nominal_cost([kernel("dense")], problem(), layout) == SEQLEN * HALF * HEADS[0]
    question = problem("shared_question", documents=[1024, 1024, 1024, 1024])
    layered = nominal_cost([kernel("layers")], question, layout)
    native = nominal_cost([kernel("row_intervals")], question, layout) * BY_INTERVALS
    assert layered == pytest.approx(native + MERGE * HALF * HEADS[0]), "two layers are merged once"


def test_a_mask_of_every_head_costs_what_its_heads_cost():
    mask = masks.build("uniform_block_sparse", SEQLEN, block=128, kept=0.5, heads=2, seed=0)
    asked = problem().with_mask(mask)
    layout = Layout(((step(ALL, ALL),),), (ALL,))
    cost = nominal_cost([kernel("block_sparse", mask_heads="query")], asked, layout)
    assert cost == asked.area, "whole tiles"


def test_imbalance_is_the_busiest_rank_over_the_mean():
    assert imbalance(problem("full"), RING) == 1.0
    causal = problem()
    whole = causal.concrete_mask.area
    busiest = HALF * HALF + HALF * (HALF + 1) // 2
    assert imbalance(causal, RING) == pytest.approx(2 * busiest / whole)
    nothing = problem().with_mask(masks.build("causal", SEQLEN).cut([(0, 64)], [(64, 128)]))
    held = (((0, 64),), ())
    assert imbalance(nothing, Layout(((), (step(held[0], held[0]),)), held)) == 1.0
