"""Intersections, unions and complements show exactly the pairs of the boolean matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import MaskError

from .strategies import loose_slices, show


@st.composite
def alike(draw, most=12):
    """Up to three masks of random slices of one size, each with its matrix."""
    seqlen_q, seqlen_k = draw(st.integers(1, most)), draw(st.integers(1, most))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        slices, seen = [], np.zeros((seqlen_q, seqlen_k), int)
        for candidate in draw(st.lists(loose_slices(seqlen_q, seqlen_k), max_size=4)):
            if not ((shown := show([candidate], seqlen_q, seqlen_k)) & seen).any():
                slices.append(candidate)
                seen |= shown
        found.append((masks.SliceMask(slices, seqlen_q, seqlen_k), seen.astype(bool)))
    return found


def is_shown_once(mask, matrix):
    return (show(mask.slices, *matrix.shape) == matrix).all()


@given(alike())
def test_an_intersection_shows_what_all_show(given_masks):
    found = masks.intersection(*(mask for mask, _ in given_masks))
    assert is_shown_once(found, np.logical_and.reduce([matrix for _, matrix in given_masks]))


@given(alike())
def test_a_union_shows_what_any_shows(given_masks):
    found = masks.union(*(mask for mask, _ in given_masks))
    assert is_shown_once(found, np.logical_or.reduce([matrix for _, matrix in given_masks]))


@given(alike())
def test_a_complement_shows_what_is_hidden(given_masks):
    mask, matrix = given_masks[0]
    assert is_shown_once(masks.complement(mask), ~matrix)
    assert masks.complement(masks.complement(mask)) == mask


def test_operators_are_the_functions():
    causal, window = masks.build("causal", 9), masks.build("full_sliding_window", 9, window=2)
    assert causal & window == masks.build("causal_sliding_window", 9, window=2)
    assert causal | window == masks.union(causal, window)
    assert ~causal == masks.complement(causal)


def test_masks_that_cannot_be_combined_are_refused():
    with pytest.raises(MaskError, match="give at least one"):
        masks.union()
    with pytest.raises(MaskError, match="causal of 8 tokens and the causal of 9 tokens differ in size"):
        masks.build("causal", 8) & masks.build("causal", 9)
    several = masks.BlockSparseMask(np.ones((2, 1, 1), bool), [0, 8], [0, 8])
    with pytest.raises(MaskError, match=r"2 heads .* differ; take one of them with mask.head\(i\)"):
        masks.build("causal", 8) | several
    with pytest.raises(MaskError, match="int is no mask"):
        masks.intersection(masks.build("causal", 8), 5)
    with pytest.raises(TypeError):
        masks.build("causal", 8) & 5
