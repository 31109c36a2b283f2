import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca.errors import MaskError
from longca.masks import MAX_SEQLEN, Slice, SliceMask, build
from longca.masks.slices import area, from_slices, merge, tighten, to_slices

from .strategies import loose_slices, region_cases, show, static_cases

SIZE = st.integers(1, 12)


@given(st.data(), SIZE, SIZE)
def test_a_tight_slice_shows_what_the_loose_one_did_and_wastes_no_row_column_or_diagonal(data, seqlen_q, seqlen_k):
    loose = data.draw(loose_slices(seqlen_q, seqlen_k))
    shown = show([loose], seqlen_q, seqlen_k)
    array = from_slices([loose])
    assert len(array) == shown.any()
    if len(array):
        q, k = np.nonzero(shown)
        assert array[0].tolist() == [q.min(), q.max() + 1, k.min(), k.max() + 1, (k - q).min(), (k - q).max()]
        assert area(array).tolist() == [shown.sum()]
        assert tighten(array).tolist() == array.tolist()


@given(st.data(), SIZE, SIZE)
def test_public_slices_say_unbounded_where_the_band_cuts_nothing(data, seqlen_q, seqlen_k):
    loose = data.draw(loose_slices(seqlen_q, seqlen_k))
    for tight in to_slices(from_slices([loose])):
        assert show([tight], seqlen_q, seqlen_k).tolist() == show([loose], seqlen_q, seqlen_k).tolist()
        unbounded = tight._replace(lo=-math.inf, hi=math.inf)
        is_rectangle = show([unbounded], seqlen_q, seqlen_k).sum() == show([tight], seqlen_q, seqlen_k).sum()
        assert is_rectangle == (tight.lo == -math.inf and tight.hi == math.inf)


@given(region_cases())
def test_merging_keeps_the_region_disjoint_and_takes_no_more_slices(case):
    merged = merge(case.mask.array)
    shown = show(to_slices(merged), *case.dense.shape)
    assert shown.tolist() == case.dense.astype(int).tolist()
    assert len(merged) <= len(case.mask.array)
    assert merge(merged).tolist() == merged.tolist()


@given(static_cases(pattern="causal", most=16), st.data())
def test_a_causal_band_cut_into_strips_merges_back_into_one_slice(case, data):
    m = case.mask
    rows = sorted(data.draw(st.sets(st.integers(0, m.seqlen_q), max_size=6)) | {0, m.seqlen_q})
    strips = [Slice(a, b, 0, m.seqlen_k, hi=m.seqlen_k - m.seqlen_q) for a, b in pairwise(rows)]
    assert merge(from_slices(strips)).tolist() == m.array.tolist()


@pytest.mark.parametrize(
    ("pattern", "factors", "expected"),
    [
        ("full", {}, lambda n: n * n),
        ("causal", {}, lambda n: n * (n + 1) // 2),
        ("causal_sliding_window", {"window": 1024}, lambda n: 1025 * n - 1024 * 1025 // 2),
        ("full_sliding_window", {"window": 1024}, lambda n: 2049 * n - 1024 * 1025),
        ("prefix_lm_causal", {"prefix": 2**29}, lambda n: n * (n + 1) // 2 + 2**28 * (2**29 - 1)),
        ("global_sliding_window", {"window": 0, "global_tokens": 1000}, lambda n: n * n - (n - 1000) * (n - 1001)),
        ("causal_document", {"documents": [1, 2**30 - 1]}, lambda n: 1 + n * (n - 1) // 2),
        ("shared_question", {"documents": [2**29, 2**29]}, lambda n: n * (n + 1) // 2),
    ],
)
def test_areas_are_exact_integers_at_the_longest_length(pattern, factors, expected):
    found = build(pattern, MAX_SEQLEN, **factors).area
    assert type(found) is int
    assert found == expected(MAX_SEQLEN)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Slice(0, 2.5, 0, 4), "integers"),
        (Slice(-1, 2, 0, 4), "from 0"),
        (Slice(0, MAX_SEQLEN + 1, 0, 4), str(MAX_SEQLEN)),
        (Slice(0, 2, 0, 4, lo=math.nan), "lo and hi"),
        (Slice(0, 2, 0, 4, hi=0.5), "lo and hi"),
        (Slice(0, 5, 0, 4), "query 5"),
        (Slice(0, 4, 0, 5), "key 5"),
    ],
)
def test_slices_that_do_not_fit_are_refused(bad, words):
    with pytest.raises(MaskError, match=words):
        SliceMask([bad], 4, 4)


def test_overlapping_slices_are_refused():
    with pytest.raises(MaskError, match="overlap"):
        SliceMask([Slice(0, 4, 0, 4, hi=0), Slice(3, 4, 3, 4)], 4, 4)
