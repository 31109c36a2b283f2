from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca.errors import UnsupportedError
from longca_cp.placement import document_lengths, place
from longca_cp.whole_documents import _Packing

from .cases import positions, square_masks

PATTERNS = ("causal_document", "full_document", "block_causal_document", "prefix_lm_document")


def owners(placed, seqlen):
    """The part of each token."""
    found = np.full(seqlen, -1)
    for part, ranges in enumerate(placed):
        found[positions(ranges)] = part
    return found


def spread_of(placed, mask):
    """Which documents several parts hold."""
    owner = owners(placed, mask.seqlen_q)
    stops = np.cumsum(document_lengths(mask))
    return np.array([len(set(found)) > 1 for found in np.split(owner, stops[:-1])])


@given(square_masks(), st.integers(1, 6))
def test_documents_below_the_longest_spread_one_are_whole(mask, parts):
    try:
        lengths = document_lengths(mask)
    except UnsupportedError:
        with pytest.raises(UnsupportedError):
            place("whole_documents", mask, parts)
        return
    with mock.patch.object(_Packing, "filled", autospec=True, side_effect=_Packing.filled) as filled:
        placed = place("whole_documents", mask, parts)
    # The spread documents are the longest ones. The tokens of one of them may all happen to come to one part.
    spread = filled.call_args.args[1]
    assert not spread_of(placed, mask)[np.argsort(-lengths, kind="stable")[spread:]].any()
    # Exact balance, as far as whole tokens allow.
    rows = mask.dense().sum(axis=1)
    loads = [int(rows[positions(part)].sum()) for part in placed]
    assert max(loads) - sum(loads) / parts <= 2 * rows.max()


def test_a_long_causal_document_is_a_zigzag():
    mask = masks.build("causal_document", 64, documents=[48, 8, 8])
    placed = place("whole_documents", mask, 2)
    assert placed == (((12, 36), (48, 56)), ((0, 12), (36, 48), (56, 64)))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_few_of_many_documents_are_spread_and_pairs_are_even(pattern):
    mask = masks.sample(pattern, 131072, lengths="prolong64k", seed=3)
    placed = place("whole_documents", mask, 4)
    assert 1 <= spread_of(placed, mask).sum() <= 4 < 30 <= len(document_lengths(mask))
    loads = [mask.cut(part, [(0, 131072)]).area for part in placed]
    assert max(loads) <= 1.0005 * np.mean(loads)
