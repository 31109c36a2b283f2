import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longca import masks
from longca_cp.balanced import CHUNK, MIN_CHUNKS, TOLERANCE, areas, balanced

from .cases import positions, square_masks


@given(square_masks(), st.data())
def test_areas_of_chunks_are_those_of_their_rows(mask, data):
    inner = data.draw(st.lists(st.integers(0, mask.seqlen_q), max_size=6))
    bounds = np.array([0, *sorted(inner), mask.seqlen_q])
    rows = np.r_[0, np.cumsum(mask.dense().sum(axis=1))]
    assert areas(mask, bounds).tolist() == np.diff(rows[bounds]).tolist()


def test_areas_are_summed_over_heads():
    mask = masks.build("uniform_block_sparse", 256, block=64, kept=0.5, heads=3, seed=0)
    bounds = np.array([0, 10, 128, 256])
    rows = np.r_[0, np.cumsum(mask.dense().sum(axis=(0, 2)))]
    assert areas(mask, bounds).tolist() == np.diff(rows[bounds]).tolist()


@given(square_masks(), st.integers(1, 5))
def test_parts_differ_by_less_than_a_chunk(mask, parts):
    """The bound is the largest chunk less the smallest. Chunks of unequal length add the rows that moved."""
    placed = balanced(mask, parts)
    rows = mask.dense().sum(axis=1)
    loads = [int(rows[positions(part)].sum()) for part in placed]
    chunks = parts * max(1, min(MIN_CHUNKS, mask.seqlen_q // parts))  # or twice or four times as many
    longest = -(-mask.seqlen_q // chunks)
    moved = 0 if mask.seqlen_q % (4 * chunks) == 0 else 4 * chunks * int(rows.max())
    assert max(loads) - min(loads) <= longest * int(rows.max() - rows.min()) + moved


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
    loads = [mask.cut(part, [(0, 32768)]).area for part in balanced(mask, parts)]
    tile = areas(mask, np.arange(0, 32769, 128)).max()
    assert max(loads) <= max((1 + TOLERANCE) * np.mean(loads), np.mean(loads) + tile)


def test_chunks_are_of_whole_tiles_where_tokens_allow_it():
    mask = masks.build("causal", 65536)
    for part in balanced(mask, 4):
        assert {bound % CHUNK for pair in part for bound in pair} == {0}


def test_the_largest_chunks_go_to_different_parts():
    mask = masks.build("causal_document", 64, documents=[16, 48])
    first, second = balanced(mask, 2)
    last = [(60, 64), (56, 60)]
    owners = [next(i for i, part in enumerate((first, second)) if set(range(*c)) <= set(positions(part))) for c in last]
    assert sorted(owners) == [0, 1]
