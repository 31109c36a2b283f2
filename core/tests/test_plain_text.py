"""Texts of kernels and plugins in one printable line."""

import pytest

from longca.plain_text import plain_text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a  b\n\tc", "a b c"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("left\u202eright\u200b", "left\\u202eright\\u200b"),
        ("half \ud800 of a pair", "half \\ud800 of a pair"),
        ("64 heads × 128 → ∞", "64 heads × 128 → ∞"),
        (ValueError("two\nlines"), "two lines"),
    ],
)
def test_a_line_is_printable(text, plain):
    assert plain_text(text) == plain


def test_a_long_text_is_cut_and_says_so():
    cut = plain_text("x" * 5000, 100)
    assert len(cut) == 100
    assert cut.endswith("x... (5000 characters)")
