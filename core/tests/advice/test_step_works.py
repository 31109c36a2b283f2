"""Step works: the tiles of pairs of parts, from those of the whole mask, are those of the pairs' cuts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longca import masks
from longca.manifests import Layout, Step
from longca.masks import Form, SliceMask
from longca_advice.step_works import pair_tiles, pairs_of
from longca_advice.work import TILE, work_of

PATTERNS = ["full", "causal", "causal_document", "full_sliding_window", "shared_question"]


def _layout(seqlen: int, parts: list[list[tuple[int, int]]]) -> Layout:
    """A ring of parts: each meets all."""
    ranges = [tuple(part) for part in parts]
    steps = tuple(tuple(Step(mine, other, (0, 1), (0, 1)) for other in ranges) for mine in ranges)
    return Layout(steps, tuple(ranges))


@settings(max_examples=30)
@given(pattern=st.sampled_from(PATTERNS), tiles=st.integers(2, 20), deal=st.lists(st.integers(0, 3), min_size=20))
def test_chunks_of_whole_tiles_have_exactly_the_tiles_of_their_cuts(pattern: str, tiles: int, deal: list[int]) -> None:
    mask = masks.sample(pattern, tiles * TILE)
    assert isinstance(mask, SliceMask)
    owners = [owner for owner in range(4) if owner in deal[:tiles]]
    parts = [[(t * TILE, (t + 1) * TILE) for t in range(tiles) if deal[t] == owner] for owner in owners]
    layout = _layout(tiles * TILE, parts)
    pairs = pairs_of(layout)
    found = pair_tiles(mask, layout, pairs)
    for (q, k), which in zip(pairs.parts.tolist(), found.which.tolist(), strict=True):
        runs = mask.cut(layout.table.parts[q], layout.table.parts[k]).blocks(TILE, TILE).by_query
        work = found.works[which]
        full, partial = (work.full, work.partial) if work else (0, 0)
        # Works that differ by less than 1 % are one.
        assert (full, partial) == pytest.approx((runs.num_full, runs.num_partial), rel=0.03, abs=0.03)


@pytest.mark.parametrize("block", [64, 128, 192])
@pytest.mark.parametrize("kept", [0.1, 0.7])
def test_pairs_of_blocks_have_about_the_work_of_their_cuts(block: int, kept: float) -> None:
    mask = masks.build("uniform_block_sparse", 64 * block, block=block, kept=kept, heads=2, seed=1)
    layout = _layout(64 * block, [[(n * 16 * block, (n + 1) * 16 * block)] for n in range(4)])
    pairs = pairs_of(layout)
    found = pair_tiles(mask, layout, pairs)
    for (q, k), which in zip(pairs.parts.tolist(), found.which.tolist(), strict=True):
        cut = work_of(mask.cut(layout.table.parts[q], layout.table.parts[k]), Form.BLOCK_SPARSE)
        work = found.works[which]
        assert work is not None
        assert work.path == cut.path == f"block_sparse/{block}"
        assert work.full == pytest.approx(cut.full, rel=0.03)
        assert work.tiles == pytest.approx(cut.tiles, rel=0.2)
        assert (work.rows, work.tokens, work.cells) == (cut.tokens, cut.tokens, cut.cells)
        assert 0 < work.longest <= work.cells / work.rows


@settings(max_examples=30)
@given(pattern=st.sampled_from(PATTERNS), seqlen=st.integers(300, 3000), parts=st.integers(2, 5))
def test_other_chunks_share_the_tiles_of_the_whole_mask_out(pattern: str, seqlen: int, parts: int) -> None:
    mask = masks.sample(pattern, seqlen)
    assert isinstance(mask, SliceMask)
    bounds = np.linspace(0, seqlen, parts + 1).astype(int).tolist()
    layout = _layout(seqlen, [[(start, stop)] for start, stop in pairwise(bounds)])
    found = pair_tiles(mask, layout, pairs_of(layout))
    works = [found.works[which] for which in found.which.tolist()]
    runs = mask.blocks(TILE, TILE).by_query
    total = sum(work.tiles for work in works if work)
    assert total <= 1.03 * (runs.num_full + runs.num_partial) + 0.1
    assert total * TILE**2 >= 0.9 * mask.area
