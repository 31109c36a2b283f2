"""Hypothesis strategies: small masks with awkward shapes, each with the matrix of the oracle."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from longca import masks

from . import predicates

MOST = 20


class Case(NamedTuple):
    """A mask, the boolean matrix that it must show, and its factors or slices."""

    mask: masks.Mask
    dense: np.ndarray
    pattern: str | None
    factors: dict


@st.composite
def document_lengths(draw, total):
    """Lengths that sum to a total. About every third length is one token."""
    lengths = []
    while (left := total - sum(lengths)) > 0:
        lengths.append(min(left, draw(st.one_of(st.just(1), st.integers(1, 4), st.integers(1, left)))))
    return lengths


@st.composite
def factors_for(draw, pattern, seqlen):
    """Factors of a static pattern, including the limits."""
    values = {
        "documents": document_lengths(seqlen),
        "window": st.integers(0, seqlen + 1),
        "prefix": st.integers(0, seqlen),
        "block": st.integers(1, seqlen + 1),
        "global_tokens": st.integers(0, seqlen),
    }
    return {name: draw(values[name]) for name in masks.PATTERNS[pattern].factors}


@st.composite
def static_cases(draw, pattern=None, square=False, most=MOST):
    """A mask of a static pattern, with Sq ≠ Sk if the pattern is defined for it."""
    name = draw(st.sampled_from(sorted(predicates.STATIC))) if pattern is None else pattern
    seqlen = draw(st.integers(1, most))
    rectangular = masks.PATTERNS[name].rectangular and not square
    keys = draw(st.integers(1, most)) if rectangular else seqlen
    factors = draw(factors_for(name, seqlen))
    mask = masks.build(name, seqlen, seqlen_k=keys, **factors)
    return Case(mask, predicates.dense(name, seqlen, keys, factors), name, factors)


@st.composite
def ranges(draw, seqlen):
    """Ascending disjoint ranges of [0, seqlen): none, empty ones, adjacent ones, or everything."""
    count = draw(st.integers(0, 3))
    points = sorted(draw(st.lists(st.integers(0, seqlen), min_size=2 * count, max_size=2 * count)))
    return list(zip(points[::2], points[1::2], strict=True))


def positions(ranges):
    """The positions that ranges keep."""
    return [i for start, stop in ranges for i in range(start, stop)]


def cut_dense(matrix, q_ranges, k_ranges):
    """The matrix that a cut must show, made by indexing."""
    return matrix[..., positions(q_ranges), :][..., positions(k_ranges)]


@st.composite
def cut_cases(draw, **options):
    """A static mask and one cut of it, as (case, query ranges, key ranges)."""
    case = draw(static_cases(**options))
    return case, draw(ranges(case.mask.seqlen_q)), draw(ranges(case.mask.seqlen_k))


@st.composite
def loose_slices(draw, seqlen_q, seqlen_k):
    """Any slice of a matrix: unbounded, empty, or far outside its diagonals."""
    q0, q1 = sorted((draw(st.integers(0, seqlen_q)), draw(st.integers(0, seqlen_q))))
    k0, k1 = sorted((draw(st.integers(0, seqlen_k)), draw(st.integers(0, seqlen_k))))
    edges = st.integers(-seqlen_q - 2, seqlen_k + 2)
    lo = draw(st.one_of(st.just(float("-inf")), edges))
    hi = draw(st.one_of(st.just(float("inf")), edges))
    return masks.Slice(q0, q1, k0, k1, lo, hi)


def show(slices, seqlen_q, seqlen_k):
    """Counts how often slices show each pair: int [seqlen_q, seqlen_k]."""
    cells = [
        [sum(s.q0 <= i < s.q1 and s.k0 <= j < s.k1 and s.lo <= j - i <= s.hi for s in slices) for j in range(seqlen_k)]
        for i in range(seqlen_q)
    ]
    return np.array(cells, int).reshape(seqlen_q, seqlen_k)


@st.composite
def region_cases(draw, most=12):
    """A mask of random disjoint slices, with shapes that no pattern has."""
    seqlen_q, seqlen_k = draw(st.integers(1, most)), draw(st.integers(1, most))
    slices, seen = [], np.zeros((seqlen_q, seqlen_k), int)
    for candidate in draw(st.lists(loose_slices(seqlen_q, seqlen_k), max_size=6)):
        shown = show([candidate], seqlen_q, seqlen_k)
        if not (shown & seen).any():
            slices.append(candidate)
            seen |= shown
    return Case(masks.SliceMask(slices, seqlen_q, seqlen_k), seen.astype(bool), None, {})


def any_cases():
    """Masks of patterns, and of random slices."""
    return st.one_of(static_cases(), region_cases())


@st.composite
def block_bounds(draw, most=6):
    """Block bounds that ascend from 0, of unequal sizes, many of one token."""
    sizes = draw(st.lists(st.one_of(st.just(1), st.integers(1, 5)), min_size=1, max_size=most))
    return [0, *np.cumsum(sizes).tolist()]


@st.composite
def block_sparse_cases(draw, heads=None):
    """A block-sparse mask with any bounds and bitmaps. Its matrix is [heads, Sq, Sk]."""
    count = draw(st.integers(1, 3)) if heads is None else heads
    q_bounds, k_bounds = draw(block_bounds()), draw(block_bounds())
    shape = (count, len(q_bounds) - 1, len(k_bounds) - 1)
    size = shape[0] * shape[1] * shape[2]
    kept = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(shape)
    mask = masks.BlockSparseMask(kept, q_bounds, k_bounds)
    return Case(mask, predicates.dense_blocks(kept.tolist(), q_bounds, k_bounds), None, {"kept": kept})
