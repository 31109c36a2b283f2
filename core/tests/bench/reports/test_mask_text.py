import pytest

from longca.errors import MaskError
from longca.masks import build
from longca_bench.reports.mask_text import caption, mask_title, text_picture, token_count


def test_a_small_mask_is_drawn_token_by_token():
    lines = text_picture(build("causal_document", 4, documents=[1, 3]), width=10, height=6).splitlines()
    assert lines == [
        "causal_document of 4 tokens, documents of 1, 3",
        "┌────────┐",
        "│██      │",
        "│  ██    │",
        "│  ████  │",
        "│  ██████│",
        "└────────┘",
        "area 7",
        "density 43.8 %, tile efficiency at 128: 0.043 %",
    ]


def test_halves_and_shades_show_what_a_character_shows_in_part():
    assert text_picture(build("causal", 4), width=6, height=4).splitlines()[2:4] == ["│█▄  │", "│███▄│"]
    assert text_picture(build("causal", 16), width=6, height=4).splitlines()[2:4] == ["│▓░  │", "│██▓░│"]


@pytest.mark.parametrize("seqlens", [(2**20, 2**20), (1, 2**20), (2**20, 1), (7, 5)])
@pytest.mark.parametrize(("width", "height"), [(64, 32), (4, 3), (5, 40)])
def test_pictures_fit_the_room_they_are_given(seqlens, width, height):
    lines = text_picture(build("causal", seqlens[0], seqlen_k=seqlens[1]), width, height).splitlines()
    frame = lines[1:-2]
    assert len({len(line) for line in frame}) == 1
    assert len(frame[0]) <= width
    assert len(frame) <= height
    assert frame[0][0] + frame[0][-1] + frame[-1][0] + frame[-1][-1] == "┌┐└┘"


def test_there_must_be_something_to_draw_and_room_for_it():
    with pytest.raises(MaskError, match="nothing to draw"):
        text_picture(build("causal", 8).cut([], [(0, 8)]))
    with pytest.raises(MaskError, match="take at least 4 × 3"):
        text_picture(build("causal", 8), width=3)


@pytest.mark.parametrize(
    ("mask", "first"),
    [
        (build("causal", 1, seqlen_k=2000), "causal of 1 queries × 2,000 keys"),
        (
            build("causal_document", 15, documents=[1, 2, 3, 4, 5]),
            "causal_document of 15 tokens, 5 documents of 1 to 5",
        ),
        (
            build("uniform_block_sparse", 2048, block=128, kept=0.4, heads=2, seed=7),
            "uniform_block_sparse of 2,048 tokens, block 128, 40 % kept, heads 2, seed 7",
        ),
        (
            build("variable_block_sparse", 9, boundaries=[0, 4, 9], kept=0.5),
            "variable_block_sparse of 9 tokens, blocks of 4, 5, 50 % kept, heads 1, seed 0",
        ),
    ],
)
def test_sizes_and_factors_read_as_words(mask, first):
    assert caption(mask)[0] == first


def test_lengths_are_rounded_and_the_title_is_the_pattern_s():
    lengths = {512: "512", 1000: "1,000", 1536: "1.5 K", 2**18: "256 K", 2**20: "1 M"}
    assert {length: token_count(length) for length in lengths} == lengths
    mask = build("causal", 8)
    assert (mask_title(mask), mask_title(mask.cut([(0, 4)], [(0, 4)]))) == ("Causal", "Mask")
