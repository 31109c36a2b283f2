import numpy as np
import pytest
from hypothesis import given

from longca import masks
from longca.errors import UnsupportedError
from longca_cp.documents import document_lengths

from .cases import document_lengths as drawn_lengths
from .cases import square_masks, static_mask


def plain(mask):
    """The mask without the name of its pattern and its factors."""
    return masks.SliceMask(mask.slices, mask.seqlen_q, mask.seqlen_k)


def test_factors_say_it_where_there_are_any():
    assert document_lengths(static_mask("shared_question")).tolist() == [9, 12, 1, 13]
    alone = masks.build("causal_document", 8, documents=[8])
    assert document_lengths(alone).tolist() == [8]


@given(drawn_lengths())
def test_slices_say_it_where_there_are_none(lengths):
    mask = plain(masks.build("full_document", sum(lengths), documents=lengths))
    if len(lengths) > 1 and max(lengths) > 1:
        # One-token documents in a row are one diagonal, which no slice tells from a window of one token.
        found = np.cumsum(document_lengths(mask)).tolist()
        bounds = np.cumsum(lengths).tolist()
        assert set(found) <= set(bounds)
        ones = {bound for bound, a, b in zip(bounds, lengths, lengths[1:], strict=False) if a == b == 1}
        assert set(bounds) - set(found) <= ones


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


@pytest.mark.parametrize("pattern", ["causal", "full_sliding_window", "prefix_lm_causal", "global_sliding_window"])
def test_masks_of_one_piece_have_none(pattern):
    with pytest.raises(UnsupportedError, match=rf"{pattern} of 35 tokens has no documents .*contiguous, zigzag or"):
        document_lengths(static_mask(pattern))


def test_a_mask_that_shows_nothing_has_none():
    with pytest.raises(UnsupportedError):
        document_lengths(masks.SliceMask([], 4, 4))


def test_blocks_are_no_documents():
    with pytest.raises(UnsupportedError):
        document_lengths(masks.BlockSparseMask([[1, 0], [0, 1]], [0, 4, 8], [0, 4, 8]))
