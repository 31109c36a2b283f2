"""Hypothesis strategies: small masks, each with the boolean matrix that it must show."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from longca.masks import BlockSparseMask


@st.composite
def bounds(draw, most=9, sizes=st.integers(1, 5)):
    """Bounds of a few blocks."""
    return np.cumsum([0, *draw(st.lists(sizes, min_size=1, max_size=most))])


@st.composite
def block_masks(draw, heads=(1, 2, 4), sizes=st.integers(1, 5)):
    """A block-sparse mask of one or several heads, and its matrix [heads, Tq, Tk]."""
    q_bounds, k_bounds = draw(bounds(sizes=sizes)), draw(bounds(sizes=sizes))
    shape = draw(st.sampled_from(heads)), len(q_bounds) - 1, len(k_bounds) - 1
    kept = draw(arrays.arrays(np.bool_, shape))
    return BlockSparseMask(kept, q_bounds, k_bounds), kept.repeat(np.diff(q_bounds), 1).repeat(np.diff(k_bounds), 2)


@st.composite
def slice_masks(draw):
    """A mask of slices with any intervals in its rows, and its matrix [Tq, Tk]."""
    mask, dense = draw(block_masks(heads=(1,)))
    return mask.head(0), dense[0]
