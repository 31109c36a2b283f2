"""Work: every sum is what one counts in the mask's matrix, tile by tile."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longca import masks
from longca.masks import BlockSparseMask, Form
from longca_advice.work import TILE, work_of

from ..masks import predicates
from ..masks.strategies import factors_for

#: A few tiles along each side, and seldom whole ones.
LENGTHS = st.one_of(st.integers(1, 5 * TILE), st.sampled_from([TILE, 3 * TILE]))

#: Patterns that are no bitmap of blocks.
STATIC = sorted(predicates.STATIC)


@st.composite
def static_masks(draw, pattern):
    """A mask of several tiles; Sq ≠ Sk where the pattern is defined for it."""
    seqlen = draw(LENGTHS)
    keys = draw(LENGTHS) if masks.PATTERNS[pattern].rectangular else seqlen
    return masks.build(pattern, seqlen, seqlen_k=keys, **draw(factors_for(pattern, seqlen)))


@st.composite
def block_masks(draw):
    """A block-sparse mask with something visible, of blocks that are smaller and larger than tiles."""
    sizes = st.lists(st.integers(1, 3 * TILE), min_size=1, max_size=4)
    bounds = [[0, *np.cumsum(draw(sizes)).tolist()] for _ in "qk"]
    shape = draw(st.integers(1, 3)), len(bounds[0]) - 1, len(bounds[1]) - 1
    size = int(np.prod(shape))
    kept = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))).reshape(shape)
    return BlockSparseMask(kept, *bounds)


def count(states):
    """Full and partial tiles, rows with something visible, and the longest row and column."""
    seen = states > 0
    return (
        int((states == 2).sum()),
        int((states == 1).sum()),
        int(seen.any(1).sum()),
        int(seen.sum(1).max(initial=0)),
        int(seen.sum(0).max(initial=0)),
    )


def count_documents(calls, seqlen_q, seqlen_k):
    """The same for varlen calls, with each document on tiles of its own; and the tiles of queries launched."""
    parts, launched = [], 0
    for call in calls:
        shown = predicates.showings([call], seqlen_q, seqlen_k).astype(bool)
        bounds_q, bounds_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
        sides, found = [], []
        for q0, q1, k0, k1 in zip(bounds_q[:-1], bounds_q[1:], bounds_k[:-1], bounds_k[1:], strict=True):
            sides += [q1 - q0, k1 - k0]
            if q1 > q0 and k1 > k0:
                # A tile that a document does not fill has to be masked: it is partial.
                document = np.pad(shown[q0:q1, k0:k1], [(0, -(q1 - q0) % TILE), (0, -(k1 - k0) % TILE)])
                found.append(count(predicates.block_states(document, TILE, TILE)))
        columns = list(zip(*found, strict=True)) or [[0]] * 5
        parts.append([sum(columns[0]), sum(columns[1]), sum(columns[2]), max(columns[3]), max(columns[4])])
        launched += (len(bounds_q) - 1) * -(-max(sides) // TILE)
    return *(sum(column) for column in zip(*parts, strict=True)), launched


def sums(work):
    return work.full, work.partial, work.rows, work.longest, work.longest_column


def sizes(mask):
    """Rows of tiles, and tiles of the whole matrix."""
    rows, columns = -(-mask.seqlen_q // TILE), -(-mask.seqlen_k // TILE)
    return rows, rows * columns


@pytest.mark.parametrize("pattern", STATIC)
@settings(max_examples=25)
@given(data=st.data())
def test_tiles_of_the_whole_matrix_are_those_that_one_counts(pattern, data):
    mask = data.draw(static_masks(pattern))
    counted = count(predicates.block_states(mask.dense(), TILE, TILE))
    for form in (Form.FULL, Form.CAUSAL, Form.WINDOW, Form.ROW_INTERVALS, Form.COLUMN_INTERVALS):
        if mask.admits(form):
            work = work_of(mask, form)
            assert sums(work) == counted
            assert (work.tokens, work.cells) == sizes(mask)
            assert (work.calls, work.grid) == (1, 0)


@pytest.mark.parametrize("pattern", STATIC)
@settings(max_examples=25)
@given(data=st.data())
def test_documents_are_tiled_from_their_own_first_token(pattern, data):
    mask = data.draw(static_masks(pattern))
    calls = mask.head(0).layers
    counted = count_documents(calls, mask.seqlen_q, mask.seqlen_k)
    for form in (Form.VARLEN, Form.LAYERS):
        if mask.admits(form):
            work = work_of(mask, form)
            assert (*sums(work), work.grid) == counted
            assert (work.tokens, work.cells) == sizes(mask)
            assert work.calls == len(calls)
            assert (form is Form.LAYERS) or work.calls == 1


@given(block_masks())
def test_blocks_count_by_their_area_and_by_the_tiles_that_they_touch(mask):
    work = work_of(mask, Form.BLOCK_SPARSE)
    dense = mask.dense().reshape(mask.heads, mask.seqlen_q, mask.seqlen_k)
    touched = sum(int((predicates.block_states(head, TILE, TILE) > 0).sum()) for head in dense)
    assert work.full == pytest.approx(dense.sum() / TILE**2 / mask.heads)
    assert work.tiles == pytest.approx(touched / mask.heads)
    tall = 0
    for head in dense:
        for start, stop in zip(mask.q_bounds[:-1], mask.q_bounds[1:], strict=True):
            tall += -(-(stop - start) // TILE) * bool(head[start].any())
    assert work.rows == pytest.approx(tall / mask.heads)
    assert work.longest == dense.sum(2).max() / TILE
    assert work.longest_column == pytest.approx(sizes(mask)[0] * dense.mean())
    assert (work.tokens, work.cells) == sizes(mask)
    assert (work.calls, work.grid) == (1, 0)


@pytest.mark.parametrize(
    ("pattern", "factors", "form", "path"),
    [
        ("full", {}, Form.FULL, "full"),
        ("causal", {}, Form.CAUSAL, "causal"),
        ("full", {}, Form.WINDOW, "window/full"),
        ("causal", {}, Form.WINDOW, "window/causal"),
        ("causal_sliding_window", {"window": 9}, Form.WINDOW, "window/left"),
        ("full_sliding_window", {"window": 9}, Form.WINDOW, "window/window"),
        ("full_document", {"documents": [100, 200]}, Form.VARLEN, "varlen/full"),
        ("causal_document", {"documents": [100, 200]}, Form.VARLEN, "varlen/causal"),
        ("shared_question", {"documents": [100, 200]}, Form.LAYERS, "layers"),
        ("causal_document", {"documents": [100, 200]}, Form.ROW_INTERVALS, "row_intervals"),
    ],
)
def test_paths_tell_apart_what_kernels_have_code_of_their_own_for(pattern, factors, form, path):
    work = work_of(masks.build(pattern, 300, **factors), form)
    assert (work.path, work.family) == (path, "slices")


def test_a_packed_work_follows_the_documents_that_a_kernel_is_given():
    two = masks.build("causal_document", 3, documents=[1, 2])
    # A cut merges neighbours: its slices are other documents that show the same.
    cut = masks.build("causal_document", 3, documents=[2, 1]).cut([(0, 3)], [(0, 3)])
    for mask in (two, cut):
        assert work_of(mask, Form.VARLEN).grid == len(mask.varlen.cu_seqlens_q) - 1
