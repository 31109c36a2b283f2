"""Layers of several masks share one placement: values and gradients on ranks, balance, choices and refusals."""

import numpy as np
import pytest

import longca
from longca import masks
from longca.errors import RequestError, UnsupportedError

from .test_strategies import EXACT, sizes

WINDOW, FULL = ("causal_sliding_window", (("window", 9),), 5), ("causal", (), 1)
BLOCKS = ("uniform_block_sparse", (("block", 4), ("kept", 0.3), ("heads", 4), ("seed", 1)), 3)
COARSE = ("uniform_block_sparse", (("block", 12), ("kept", 0.5), ("seed", 2)), 1)


@pytest.mark.parametrize("placement", ["auto", "balanced"])
@pytest.mark.parametrize("strategy", ["ring_p2p", "ring_all_gather"])
@sizes(3)
def test_layers_that_alternate_between_window_and_causal(world, strategy, placement):
    check(world.run("layers_of_two_masks", strategy, (("ring", 3),), placement, (WINDOW, FULL)))


@sizes(4)
def test_strategies_that_split_heads_share_too(world):
    check(world.run("layers_of_two_masks", "usp", (("ring", 2), ("ulysses", 2)), "balanced", (WINDOW, FULL)))
    check(world.run("layers_of_two_masks", "ulysses", (("ulysses", 4),), "auto", (WINDOW, FULL)))
    check(world.run("layers_of_two_masks", "auto", (("cp", 4),), "auto", (WINDOW, FULL)))


@pytest.mark.parametrize("placement", ["auto", "balanced"])
@pytest.mark.parametrize("other", [COARSE, FULL])
@pytest.mark.parametrize("strategy", ["ring_p2p", "ring_all_gather"])
@sizes(3)
def test_layers_of_blocks_share_with_other_blocks_and_with_dense_masks(world, strategy, other, placement):
    transport = "copy_engine" if placement == "balanced" else "auto"
    check(world.run("layers_of_two_masks", strategy, (("ring", 3),), placement, (BLOCKS, other), transport))


def check(found):
    """All ranks made the same layouts, with equal shards, and computed the right values."""
    for layouts, error in found:
        assert layouts == found[0][0]
        assert layouts[0] == layouts[1]
        assert error <= EXACT


# Without processes

CPU = longca.Device("cpu")


def lay_out(weighed, **more):
    asked = {"strategy": "ring_p2p", "mesh": {"ring": 4}, "heads": (8, 2), "device": CPU, "kernel": "naive", **more}
    return longca.layout(weighed, **asked)


def loads(weighed, shards):
    """The weighted pairs of each part."""
    return [sum(weight * mask.cut(part, [(0, mask.seqlen_k)]).area for mask, weight in weighed) for part in shards]


@pytest.mark.parametrize("placement", ["balanced", "whole_documents"])
@pytest.mark.parametrize("weights", [(5, 1), (0.25, 4)])
def test_the_weighted_sum_is_balanced(placement, weights):
    lengths = [1500, 100, 900, 200, 1396]
    of = [
        masks.build("causal_document", 4096, documents=lengths),
        masks.build("full_document", 4096, documents=lengths),
    ]
    weighed = list(zip(of, weights, strict=True))
    made = lay_out(weighed, placement=placement)
    assert [layout.placement for layout in made] == [placement] * 2
    assert made[0].shards == made[1].shards
    parts = loads(weighed, made[0].shards)
    assert max(parts) <= 1.01 * sum(parts) / 4
    assert {made[0].shard_size(rank) for rank in range(4)} == {1024}


def test_a_layout_keeps_the_cut_of_its_own_mask():
    window, full = masks.build("causal_sliding_window", 4096, window=64), masks.build("causal", 4096)
    first, second = lay_out([(window, 5), (full, 1)], strategy="ring_all_gather", placement="balanced")
    gathered = [sum(stop - start for start, stop in layout.steps[0][0].k_ranges) for layout in (first, second)]
    assert gathered[0] < gathered[1]
    assert lay_out([(full, 3)], placement="zigzag") == (lay_out(full, placement="zigzag"),)


def test_auto_weighs_the_masks_by_their_weights():
    """Equal documents are whole in stretches, and a causal mask is even in a zigzag: the weightier mask decides."""
    documents, full = masks.build("full_document", 8192, documents=[2048] * 4), masks.build("causal", 8192)
    found = [lay_out([(documents, a), (full, b)])[0].placement for a, b in ((1, 1e-3), (1e-3, 1))]
    assert found == [lay_out(documents).placement, lay_out(full).placement] == ["contiguous", "zigzag"]


@pytest.mark.parametrize(
    ("weighed", "says"),
    [
        ([], r"shared by no masks; give \[\(mask, weight\), ...\]"),
        ([(masks.build("causal", 8), 0)], "the weight of causal of 8 tokens is 0; give a finite number above 0"),
        ([(masks.build("causal", 8), float("nan"))], "is nan; give a finite number"),
        (
            [(masks.build("causal", 8), 1), (masks.build("causal", 9), 1)],
            r"have one length, and these differ: causal of 8 tokens has 8 × 8; causal of 9 tokens has 9 × 9 ",
        ),
    ],
)
def test_masks_that_cannot_share_are_refused(weighed, says):
    with pytest.raises(RequestError, match=says):
        lay_out(weighed)


def test_a_placement_that_does_not_suit_a_mask_is_refused():
    documents, full = masks.build("causal_document", 64, documents=[24, 40]), masks.build("causal", 64)
    with pytest.raises(
        UnsupportedError,
        match=r"whole_documents of ring_p2p does not suit all masks\. .*causal of 64 tokens has no doc",
    ):
        lay_out([(documents, 1), (full, 1)], placement="whole_documents")
    others = masks.build("causal_document", 64, documents=[32, 32])
    with pytest.raises(UnsupportedError, match="have no bound in common: causal_document of 64 tokens"):
        lay_out([(documents, 1), (others, 1)], placement="zigzag_document")


def blocks_of(kept, size):
    """A block-sparse mask whose blocks all have one size."""
    bounds = np.arange(kept.shape[-1] + 1) * size
    return masks.BlockSparseMask(kept, bounds, bounds)


#: Queries late in the sequence see much, and those early in it, in masks of one head or eight.
LATE = blocks_of(np.tril(np.ones((64, 64), bool)) & (np.arange(64) > 31)[:, None] | np.eye(64, dtype=bool), 64)
EARLY = blocks_of(np.triu(np.ones((64, 64), bool)), 64)
EARLY_COARSE = blocks_of(np.triu(np.ones((16, 16), bool)), 256)


@pytest.mark.parametrize("strategy", ["ring_p2p", "ring_all_gather"])
@pytest.mark.parametrize("weights", [(5, 1), (0.25, 4)])
@pytest.mark.parametrize("other", [EARLY, EARLY_COARSE, masks.build("causal", 4096)])
def test_blocks_are_dealt_by_the_weighted_sum_of_all_masks(strategy, other, weights):
    weighed = [(LATE, weights[0]), (other, weights[1])]
    made = lay_out(weighed, strategy=strategy, placement="balanced")
    shards = made[0].shards
    assert made[1].shards == shards
    assert not {end for shard in shards for pair in shard for end in pair} - set(range(0, 4097, 64))
    parts = loads([(mask, weight / mask.heads) for mask, weight in weighed], shards)
    assert max(parts) <= 1.06 * sum(parts) / 4
    assert max(made[0].shard_size(rank) for rank in range(4)) <= 1024 + 256


def test_a_layout_shared_with_another_mask_or_weight_is_another_one():
    window, full = masks.build("causal_sliding_window", 512, window=16), masks.build("causal", 512)
    shards = [lay_out([(window, weight), (full, 1)], placement="balanced")[0].shards for weight in (1, 10**6)]
    assert shards[0] != shards[1]
