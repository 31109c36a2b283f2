"""Masks and problems for the tests of layouts and placements, and the positions of ranges."""

import numpy as np
from hypothesis import strategies as st

from longca import masks
from longca.manifests import Device, Problem

#: A mask of every static pattern on few tokens, with documents that no number of ranks divides.
STATIC = {
    "full": {},
    "causal": {},
    "full_sliding_window": {"window": 5},
    "causal_sliding_window": {"window": 9},
    "full_document": {"documents": (11, 1, 20, 3)},
    "causal_document": {"documents": (11, 1, 20, 3)},
    "block_causal_document": {"documents": (17, 2, 16), "block": 4},
    "prefix_lm_causal": {"prefix": 13},
    "prefix_lm_document": {"documents": (17, 2, 16), "prefix": 5},
    "shared_question": {"documents": (9, 12, 1, 13)},
    "global_sliding_window": {"window": 3, "global_tokens": 4},
    "causal_blockwise": {"documents": (9, 12, 1, 13)},
}
SEQLEN = 35


def static_mask(pattern):
    return masks.build(pattern, SEQLEN, **STATIC[pattern])


def problem(mask, heads_q=8, heads_kv=2, **fields):
    return Problem(mask=mask, heads_q=heads_q, heads_kv=heads_kv, device=Device("cuda", (9, 0)), **fields)


def positions(ranges):
    """The tokens that ranges hold."""
    return [token for start, stop in ranges for token in range(start, stop)]


@st.composite
def document_lengths(draw, most=60):
    return draw(st.lists(st.one_of(st.integers(1, 4), st.integers(1, most // 3)), min_size=1, max_size=8))


@st.composite
def square_masks(draw):
    """A mask of any static pattern, on one token or more. Some have no factors, like a cut."""
    pattern = draw(st.sampled_from(sorted(STATIC)))
    documents = draw(document_lengths())
    seqlen = sum(documents)
    values = {
        "documents": st.just(documents),
        "window": st.integers(0, seqlen),
        "prefix": st.integers(0, seqlen),
        "block": st.integers(1, seqlen),
        "global_tokens": st.integers(0, seqlen),
    }
    factors = {name: draw(values[name]) for name in masks.PATTERNS[pattern].factors}
    mask = masks.build(pattern, seqlen, **factors)
    return mask if draw(st.booleans()) else masks.SliceMask(mask.slices, seqlen, seqlen)


@st.composite
def block_masks(draw, heads=(1, 2, 3)):
    """A block-sparse mask of one or more heads, whose query blocks and key blocks may differ in size."""
    size = draw(st.integers(1, 6))
    units = [size] * draw(st.integers(1, 12)) if draw(st.booleans()) else draw(st.lists(st.integers(1, 9), min_size=1))
    bounds = np.cumsum([0, *units])
    inner = draw(st.lists(st.integers(0, int(bounds[-1])), max_size=4))
    q_bounds, k_bounds = draw(st.permutations([bounds, np.union1d(bounds, np.array(inner, np.int64))]))
    shape = draw(st.sampled_from(heads)), len(q_bounds) - 1, len(k_bounds) - 1
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return masks.BlockSparseMask(random.random(shape) < draw(st.sampled_from([0.1, 0.5, 1.0])), q_bounds, k_bounds)
