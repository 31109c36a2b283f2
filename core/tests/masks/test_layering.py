from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Form, Slice, SliceMask, Window, build, sample
from longca.masks.layering import fit_layers

from . import predicates
from .strategies import any_cases, ranges


def bound(matrix):
    """Layers that any mask needs: the most pairs of which no two can be in one layer.

    If one pair is below and left of another, one layer has both only in one document, which shows the whole rectangle
    between them. Longer chains span larger rectangles, so neighbours decide.
    """
    pairs = [(int(i), int(j)) for i, j in np.argwhere(matrix)][::-1]
    longest = {}
    for i, j in pairs:
        below = [
            count
            for (row, column), count in longest.items()
            if row > i and column < j and not matrix[i : row + 1, column : j + 1].all()
        ]
        longest[i, j] = 1 + max(below, default=0)
    return max(longest.values(), default=0)


@given(any_cases(), st.data())
def test_layers_are_at_least_the_bound_and_at_most_the_slices(case, data):
    mask = case.mask.cut(data.draw(ranges(case.mask.seqlen_q)), data.draw(ranges(case.mask.seqlen_k)))
    assert bound(mask.dense()) <= len(mask.layers) <= max(1, len(mask.array))


@given(any_cases())
def test_a_limit_is_answered_as_the_layers_are_counted(case):
    if not case.mask.admits(Form.VARLEN):
        for most in range(1, 6):
            assert fit_layers(case.mask.array, most) == (len(case.mask.layers) <= most)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("steps", [2, 3, 4, 7, 8, 20])
@given(st.data())
def test_rectangles_in_a_staircase_take_layers_by_the_logarithm_of_its_steps(steps, data):
    heights, widths = (data.draw(st.lists(st.integers(2, 5), min_size=steps, max_size=steps)) for _ in range(2))
    rows, keys = (np.cumsum(sizes).tolist() for sizes in (heights, widths))
    mask = SliceMask(
        [Slice(stop - height, stop, 0, key) for stop, height, key in zip(rows, heights, keys, strict=True)],
        rows[-1],
        keys[-1],
    )
    assert len(mask.layers) == steps.bit_length()
    assert {layer.window for layer in mask.layers} == {Window(None, None)}
    assert predicates.showings(mask.layers, *mask.dense().shape).tolist() == mask.dense().astype(int).tolist()


def zigzag(lengths, rank, ranks):
    """Two chunks of each document: the rank's, counted from either end."""
    starts = np.cumsum(lengths) - lengths
    bounds = starts[:, None] + lengths[:, None] * np.arange(2 * ranks + 1) // (2 * ranks)
    chunks = [list(pairwise(cuts))[at] for cuts in bounds.tolist() for at in (rank, 2 * ranks - 1 - rank)]
    return [(start, stop) for start, stop in chunks if start < stop]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zigzag_within_causal_documents_takes_two_causal_layers(ranks):
    mask = sample("causal_document", 131072, lengths="prolong64k", seed=3)
    for rank in range(ranks):
        cut = mask.cut(zigzag(np.array(mask.factors["documents"]), rank, ranks), [(0, mask.seqlen_k)])
        # The chunks of the last rank are neighbours.
        assert [layer.window for layer in cut.layers] == [Window(None, 0)] * (1 if rank == ranks - 1 else 2)


@pytest.mark.parametrize("chunks", [2, 3, 4, 5, 9, 17, 65])
def test_scattered_chunks_of_a_causal_document_take_one_causal_layer_and_a_staircase(chunks):
    mask = build("causal", 16 * chunks)
    layers = mask.cut([(16 * at + 8, 16 * at + 16) for at in range(chunks)], [(0, mask.seqlen_k)]).layers
    assert len(layers) == 1 + (chunks - 1).bit_length()


def test_a_document_that_needs_a_wider_window_has_a_layer_of_its_own():
    mask = SliceMask([Slice(0, 4, 0, 4, -1, 0), Slice(4, 9, 4, 9, hi=0), Slice(9, 12, 9, 12)], 12, 12)
    assert len(mask.layers) == 3
    assert predicates.showings(mask.layers, 12, 12).tolist() == mask.dense().astype(int).tolist()
