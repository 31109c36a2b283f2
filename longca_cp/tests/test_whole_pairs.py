"""Whole pairs have a cut that is as large as its cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longca import Device, Problem, masks, registry
from longca.manifests.step_cuts import step_areas
from longca.masks import Slice, SliceMask
from longca_cp.schedules.whole_pairs import whole_pairs


@settings(max_examples=40)
@given(
    pattern=st.sampled_from(
        ["full", "causal", "full_document", "causal_document", "full_sliding_window", "shared_question"]
    ),
    seqlen=st.integers(8, 600),
    seeing=st.floats(0.1, 1),
    ranks=st.integers(2, 7),
    placement=st.sampled_from(["contiguous", "zigzag", "balanced"]),
)
def test_pairs_are_whole_where_their_cut_shows_every_cell(
    pattern: str, seqlen: int, seeing: float, ranks: int, placement: str
) -> None:
    mask = masks.sample(pattern, seqlen)
    if pattern == "full":  # whose last queries may see nothing
        mask = SliceMask([Slice(0, round(seeing * seqlen), 0, seqlen)], seqlen, seqlen)
    assert isinstance(mask, SliceMask)
    problem = Problem(mask=mask, heads_q=2, heads_kv=2, device=Device("cpu"))
    layout = registry().layout("ring_p2p", problem, {"ring": ranks}, placement)
    q, k, _ = layout.table.table.T
    tokens = np.array([np.diff(part).sum() for part in layout.table.arrays], np.int64)
    cells = tokens[q] * tokens[k]
    expected = (step_areas(problem, layout) == cells) & (cells > 0)
    np.testing.assert_array_equal(whole_pairs(mask, layout.table)[q, k], expected)


@pytest.mark.parametrize("placement", ["contiguous", "zigzag", "balanced"])
def test_a_full_mask_is_whole_everywhere(placement: str) -> None:
    problem = Problem(mask=masks.sample("full", 1000), heads_q=2, heads_kv=2, device=Device("cpu"))
    layout = registry().layout("ring_p2p", problem, {"ring": 5}, placement)
    assert isinstance(problem.mask, SliceMask)
    assert whole_pairs(problem.mask, layout.table).all()
