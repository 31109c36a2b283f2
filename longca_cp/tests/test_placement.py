import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import UnsupportedError
from longca_cp import RING_P2P
from longca_cp.placement import PLACEMENTS, document_lengths, place

from .cases import positions, square_masks


def test_a_ring_takes_every_placement_in_their_order():
    assert RING_P2P.placements == tuple(PLACEMENTS)


@given(square_masks(), st.sampled_from(sorted(PLACEMENTS)), st.integers(1, 9))
def test_parts_hold_every_token_once_and_equally_many(mask, kind, parts):
    try:
        placed = place(kind, mask, parts)
    except UnsupportedError:
        assert kind in ("zigzag_document", "whole_documents")
        return
    assert len(placed) == parts
    lengths = [len(positions(part)) for part in placed]
    assert sorted(token for part in placed for token in positions(part)) == list(range(mask.seqlen_q))
    assert max(lengths) - min(lengths) <= 1
    for part in placed:
        bounds = [bound for pair in part for bound in pair]
        assert bounds == sorted(set(bounds)), "ascending, none empty, and neighbours joined"
    assert place(kind, mask, parts) == placed


@pytest.mark.parametrize("kind", ["contiguous", "zigzag", "balanced"])
def test_fewer_tokens_than_parts(kind):
    placed = place(kind, masks.build("causal", 2), 5)
    assert [len(positions(part)) for part in placed] == [1, 1, 0, 0, 0]
    nothing = place(kind, masks.SliceMask([], 0, 0), 3)
    assert nothing == ((), (), ())


def test_contiguous():
    assert place("contiguous", masks.build("causal", 10), 3) == (((0, 4),), ((4, 7),), ((7, 10),))


def test_zigzag():
    assert place("zigzag", masks.build("causal", 16), 2) == (((0, 4), (12, 16)), ((4, 12),))
    # 10 and 9 tokens: the longer part's stretches are of 5, the other's of 5 and 4.
    assert place("zigzag", masks.build("causal", 19), 2) == (((0, 5), (14, 19)), ((5, 14),))


def test_zigzag_within_documents():
    mask = masks.build("causal_document", 24, documents=[8, 16])
    assert place("zigzag_document", mask, 2) == (((0, 2), (6, 12), (20, 24)), ((2, 6), (12, 20)))


def test_what_documents_have_over_goes_round():
    mask = masks.build("causal_document", 6, documents=[1, 1, 1, 1, 1, 1])
    assert place("zigzag_document", mask, 4) == (((0, 1), (4, 5)), ((1, 2), (5, 6)), ((2, 3),), ((3, 4),))


@pytest.mark.parametrize("parts", range(1, 9))
def test_zigzag_shares_a_causal_mask_out_exactly(parts):
    mask = masks.build("causal", 2 * parts * 32)
    areas = {mask.cut(part, [(0, mask.seqlen_k)]).area for part in place("zigzag", mask, parts)}
    assert len(areas) == 1


# Documents


def plain(mask):
    """The mask without the name of its pattern and its factors."""
    return masks.SliceMask(mask.slices, mask.seqlen_q, mask.seqlen_k)


@given(square_masks())
def test_no_token_sees_beyond_its_document(mask):
    mask = plain(mask)
    try:
        lengths = document_lengths(mask)
    except UnsupportedError:
        return
    assert lengths.sum() == mask.seqlen_q
    assert lengths.min() > 0
    document = np.repeat(np.arange(len(lengths)), lengths)
    assert not mask.dense()[document[:, None] != document[None, :]].any()


def test_tokens_that_nobody_sees_are_documents_too():
    mask = masks.SliceMask([masks.Slice(2, 5, 1, 4), masks.Slice(7, 9, 7, 9)], 10, 10)
    assert document_lengths(mask).tolist() == [1, 4, 2, 2, 1]
