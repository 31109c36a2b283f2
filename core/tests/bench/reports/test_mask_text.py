import pytest

from longca.errors import MaskError
from longca.masks import build, sample
from longca_bench.reports.mask_picture import text_picture


def test_a_small_mask_is_drawn_token_by_token():
    lines = text_picture(build("causal_document", 4, documents=[1, 3]), width=10, height=6).splitlines()
    assert lines == [
        "Causal document",
        "┌────────┐",
        "│██      │",
        "│  ██    │",
        "│  ████  │",
        "│  ██████│",
        "└────────┘",
        "4 tokens, documents of 1, 3",
        "area 7",
        "density 43.8 %, tile efficiency at 128: 0.043 %",
    ]


def test_halves_and_shades_show_what_a_character_shows_in_part():
    assert text_picture(build("causal", 4), width=6, height=4).splitlines()[2:4] == ["│█▄  │", "│███▄│"]
    assert text_picture(build("causal", 16), width=6, height=4).splitlines()[2:4] == ["│▓░  │", "│██▓░│"]


@pytest.mark.parametrize("seqlens", [(2**20, 2**20), (1, 2**20), (2**20, 1), (100, 1000), (7, 5)])
@pytest.mark.parametrize(("width", "height"), [(64, 32), (20, 9), (4, 3), (5, 40)])
def test_pictures_fit_the_room_they_are_given(seqlens, width, height):
    lines = text_picture(build("causal", seqlens[0], seqlen_k=seqlens[1]), width, height).splitlines()
    frame = lines[1:-3]
    assert len({len(line) for line in frame}) == 1
    assert len(frame[0]) <= width
    assert len(frame) <= height
    assert frame[0][0] + frame[0][-1] + frame[-1][0] + frame[-1][-1] == "┌┐└┘"


def test_of_heads_that_differ_the_first_is_drawn():
    mask = sample("uniform_block_sparse", 1024, heads=3)
    assert text_picture(mask).startswith("Uniform block sparse, head 0 of 3\n")
    assert text_picture(mask).splitlines()[1:-3] == text_picture(mask.head(0)).splitlines()[1:-3]


def test_there_must_be_something_to_draw_and_room_for_it():
    with pytest.raises(MaskError, match="nothing to draw"):
        text_picture(build("causal", 8).cut([], [(0, 8)]))
    with pytest.raises(MaskError, match="take at least 4 × 3"):
        text_picture(build("causal", 8), width=3)
