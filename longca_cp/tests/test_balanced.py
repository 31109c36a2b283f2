import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca_cp.balanced import MIN_CHUNKS, TOLERANCE, WAITS, balanced, dealt, ring_time, windows
from longca_cp.placement import place
from longca_cp.rows import Rows, areas

from .cases import positions, square_masks


@given(square_masks(), st.data())
def test_areas_of_chunks_are_those_of_their_rows(mask, data):
    inner = data.draw(st.lists(st.integers(0, mask.seqlen_q), max_size=6))
    bounds = np.array([0, *sorted(inner), mask.seqlen_q])
    rows = np.r_[0, np.cumsum(mask.dense().sum(axis=1))]
    assert areas(mask, bounds).tolist() == np.diff(rows[bounds]).tolist()


def rows_of(mask):
    return Rows([(mask, 1.0)])


@given(square_masks(), st.integers(1, 5))
def test_parts_differ_by_less_than_a_chunk(mask, parts):
    """The bound is the largest chunk less the smallest. Chunks of unequal length add the rows that moved."""
    placed = dealt(rows_of(mask), parts)
    rows = mask.dense().sum(axis=1)
    loads = [int(rows[positions(part)].sum()) for part in placed]
    chunks = parts * max(1, min(MIN_CHUNKS, mask.seqlen_q // parts))  # or twice or four times as many
    longest = -(-mask.seqlen_q // chunks)
    moved = 0 if mask.seqlen_q % (4 * chunks) == 0 else 4 * chunks * int(rows.max())
    assert max(loads) - min(loads) <= longest * int(rows.max() - rows.min()) + moved


@given(square_masks(), st.integers(1, 6))
def test_windows_take_the_fewest_cuts_and_differ_by_rows(mask, parts):
    """A window is off by a row at most, and the last part gets what all of them left over."""
    placed = windows(rows_of(mask), parts)
    rows = mask.dense().sum(axis=1)
    loads = [int(rows[positions(part)].sum()) for part in placed]
    assert max(loads) - min(loads) <= parts * int(rows.max())
    cuts = {bound for part in placed for pair in part for bound in pair} - {0, mask.seqlen_q}
    assert len(cuts) <= 2 * (parts - 1)


def test_windows_of_a_causal_mask_are_a_zigzag():
    mask = masks.build("causal", 8192)
    assert windows(rows_of(mask), 4) == place("zigzag", mask, 4)[::-1]


@given(square_masks(), st.integers(2, 5))
def test_a_ring_never_waits_much_longer_than_with_dealt_chunks(mask, parts):
    rows = rows_of(mask)
    assert ring_time(rows, balanced(rows, parts)) <= (1 + WAITS) * ring_time(rows, dealt(rows, parts))


def test_the_time_of_a_ring_is_that_of_its_steps():
    """Two ranks of contiguous halves of a causal mask: the second one has three quarters of the pairs."""
    mask = masks.build("causal", 64)
    assert ring_time(rows_of(mask), place("contiguous", mask, 2)) == 32 * 33 / 2 + 32 * 32
    # Whole documents on ranks: no step but the first has any pairs.
    documents = masks.build("causal_document", 64, documents=[16] * 4)
    assert ring_time(rows_of(documents), place("contiguous", documents, 4)) == 16 * 17 / 2
    # Rank 1 has 4 pairs in step 0. Rank 2 has 4 in step 2, which begins when rank 1 has begun step 1.
    late = masks.SliceMask([masks.Slice(1, 2, 1, 2, -9, 9), masks.Slice(2, 3, 0, 1, -9, 9)], 3, 3)
    assert ring_time(rows_of(late), place("contiguous", late, 3)) == 2


@pytest.mark.parametrize("parts", [2, 3, 4, 7, 8])
@pytest.mark.parametrize(
    ("pattern", "factors"),
    [
        ("full", {}),
        ("causal", {}),
        ("causal_document", {"documents": [9000, 300, 5000, 70, 10000, 8398]}),
        ("shared_question", {"documents": [2000, 9000, 3000, 18768]}),
        ("global_sliding_window", {"window": 1024, "global_tokens": 1500}),
        ("prefix_lm_causal", {"prefix": 20000}),
        ("causal_blockwise", {"documents": [10000, 10000, 12768]}),
    ],
)
def test_areas_are_balanced(pattern, factors, parts):
    mask = masks.build(pattern, 32768, **factors)
    loads = [mask.cut(part, [(0, 32768)]).area for part in balanced(rows_of(mask), parts)]
    tile = areas(mask, np.arange(0, 32769, 128)).max()
    assert max(loads) <= max((1 + TOLERANCE) * np.mean(loads), np.mean(loads) + tile)
