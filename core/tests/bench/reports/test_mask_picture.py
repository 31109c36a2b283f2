import itertools

import pytest
from hypothesis import given
from matplotlib.figure import Figure
from matplotlib.image import imread

from longca.errors import MaskError, RequestError
from longca.masks import PATTERNS, Mask, SliceMask, build, sample
from longca_bench.reports import mask_picture
from longca_bench.reports.mask_picture import FULL, HIDDEN, PARTIAL, draw_mask, outlined_documents, paint
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


def _texts(monkeypatch, tmp_path, mask):
    """All that a picture says."""
    figures: list[Figure] = []
    monkeypatch.setattr(mask_picture, "write_figure", lambda figure, path: figures.append(figure) or path)
    draw_mask(mask, tmp_path / "mask.png")
    (figure,) = figures
    legends = [text for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()]
    return [text.get_text() for text in (*figure.texts, *legends)], [axes.get_title() for axes in figure.axes]


def test_the_picture_carries_title_caption_and_the_meaning_of_its_shades(monkeypatch, tmp_path):
    mask = build("causal_document", 4096, documents=[1000, 96, 3000])
    texts, titles = _texts(monkeypatch, tmp_path, mask)
    assert texts[0] == "Causal document"
    assert f"area {mask.area:,}" in texts[1]
    assert f"tile efficiency at 128: {mask.tile_efficiency():.1%}".replace("%", " %") in texts[1]
    assert texts[2:] == ["full block of 128", "partial block: visible", "partial block: hidden"]
    assert titles == ["keys"]
    six = build("uniform_block_sparse", 2048, block=128, kept=0.5, heads=6)
    texts, titles = _texts(monkeypatch, tmp_path, six)
    assert titles == [f"keys, head {h}" for h in range(4)]
    assert "4 of 6 heads drawn" in texts[1]


def test_of_many_documents_the_long_ones_are_outlined():
    few = build("full_document", 10, documents=[3, 1, 6])
    assert outlined_documents(few) == [(0, 3), (3, 4), (4, 10)]
    many = build("full_document", 1000, documents=[*[1] * 100, 400, *[1] * 100, 400])
    assert outlined_documents(many) == [(100, 500), (600, 1000)]
    assert outlined_documents(build("full", 8)) == []


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
