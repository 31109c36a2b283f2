"""Rectangles: they show the mask, share no row, and are as few as the mask has."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.masks import Slice, SliceMask, Window
from longca.masks.rectangles import Rectangle, rectangles

FULL, CAUSAL = Window(None, None), Window(None, 0)
MASKS = {
    "some keys": ([Slice(0, 40, 0, 12)], [Rectangle(slice(0, 40), slice(0, 12), FULL)]),
    "chunks of a zigzag": (
        [Slice(0, 10, 0, 10, hi=0), Slice(10, 20, 0, 30, hi=10)],
        [Rectangle(slice(0, 10), slice(0, 10), CAUSAL), Rectangle(slice(10, 20), slice(0, 30), CAUSAL)],
    ),
    "a window": ([Slice(5, 30, 5, 30, -4, 3)], [Rectangle(slice(5, 30), slice(5, 30), Window(4, 3))]),
    "two ranges of keys": ([Slice(0, 10, 0, 5), Slice(0, 10, 20, 30)], []),
    "nothing": ([], []),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    slices, wanted = MASKS[name]
    assert rectangles(SliceMask(slices, 40, 40), 2) == wanted


@st.composite
def stripes(draw):
    """Slices of some rows each, one below the other, with a band that sees the rectangle's last key at its last row."""
    bounds = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=4)))
    slices = []
    for q0, q1 in pairwise(bounds):
        k0, k1 = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=2)))
        corner = k1 - q1
        hi = draw(st.sampled_from([corner, corner + 3, 80]))
        slices.append(Slice(q0, q1, k0, k1, draw(st.sampled_from([-80, corner - 5])), hi))
    return SliceMask(slices, 40, 40)


@given(stripes())
def test_rectangles_show_the_mask_and_share_no_row(mask):
    found = rectangles(mask, 4)
    shown, dense = np.zeros((40, 40), int), mask.dense()
    for part in found:
        corner = part.keys.stop - part.rows.stop
        lo = -(2**40) if part.window.left is None else corner - part.window.left
        hi = 2**40 if part.window.right is None else corner + part.window.right
        bounds = part.rows.start, part.rows.stop, part.keys.start, part.keys.stop
        shown += SliceMask([Slice(*bounds, lo, hi)], 40, 40).dense()
    if found:
        assert np.array_equal(shown, dense)
        for above, below in pairwise(found):
            assert above.rows.stop <= below.rows.start
