import itertools

import pytest
from hypothesis import given
from matplotlib.image import imread

from longca.errors import MaskError, RequestError
from longca.masks import PATTERNS, Mask, SliceMask, build, sample
from longca_bench.reports.mask_picture import FULL, HIDDEN, PARTIAL, draw_mask, paint
from longca_bench.reports.mask_raster import rasterize

from ...masks.strategies import any_cases


def _hex(pixel):
    return "#" + bytes(int(x) for x in pixel).hex()


@given(any_cases())
def test_painted_cells_are_dark_exactly_where_the_matrix_shows_a_pair(case):
    painted = paint(rasterize(case.mask, most=max(case.dense.shape)))
    found = [[_hex(pixel) for pixel in line] for line in painted]
    assert found == [[FULL if seen else "#ffffff" for seen in line] for line in case.dense.tolist()]


def test_partial_blocks_are_tinted_where_they_show_and_where_they_hide():
    painted = paint(rasterize(build("causal", 6), most=6, block=2))
    assert [_hex(pixel) for pixel in painted[3]] == [FULL, FULL, PARTIAL, PARTIAL, "#ffffff", "#ffffff"]
    assert _hex(painted[2][3]) == HIDDEN


@pytest.mark.parametrize(
    ("pattern", "seqlen"), list(zip(sorted(PATTERNS), itertools.cycle((1, 8, 3000)), strict=False))
)
def test_every_pattern_is_drawn(tmp_path, pattern, seqlen):
    picture = imread(draw_mask(sample(pattern, seqlen, seed=1), tmp_path / "mask.png", dpi=60))
    assert picture[..., :3].min() < 0.5


@pytest.mark.parametrize(("seqlens", "suffix"), [((2**20, 2**20), ".png"), ((1, 2**20), ".svg"), ((2000, 600), ".pdf")])
def test_long_masks_and_masks_far_from_square_are_drawn_in_each_format(tmp_path, seqlens, suffix):
    path = draw_mask(build("causal", seqlens[0], seqlen_k=seqlens[1]), tmp_path / f"mask{suffix}")
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_what_cannot_be_drawn_is_refused(tmp_path):
    mask = build("causal", 8)
    with pytest.raises(RequestError, match=r"drawn as \.png, \.svg, \.pdf, not as 'mask\.gif'"):
        draw_mask(mask, tmp_path / "mask.gif")
    with pytest.raises(RequestError, match="cannot write"):
        draw_mask(mask, tmp_path / "nowhere" / "mask.png")
    with pytest.raises(MaskError, match="blocks of 0 tokens"):
        draw_mask(mask, tmp_path / "mask.png", block=0)
    empty: Mask = SliceMask([], 0, 8)
    with pytest.raises(MaskError, match="nothing to draw"):
        draw_mask(empty, tmp_path / "mask.png")
