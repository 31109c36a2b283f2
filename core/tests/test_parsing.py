"""Lengths, times, sizes and shares, as people write them and as LongCA prints them."""

import pytest

from longca.errors import RequestError
from longca.parsing import parse_bytes, parse_heads, parse_seconds, parse_share, parse_tokens
from longca.plain_text import time_text
from longca_bench.reports.words import tokens


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_tokens, "4096", 4096),
        (parse_tokens, "32k", 32768),
        (parse_tokens, "0.5M", 524288),
        (parse_seconds, "10min", 600),
        (parse_seconds, "90", 90),
        (parse_bytes, "80GB", 80 * 10**9),
        (parse_bytes, "1.5 tb", 15 * 10**11),
        (parse_bytes, "512 KiB", 2**19),
        (parse_share, "20 %", 0.2),
        (parse_share, "0.25", 0.25),
        (parse_heads, "64:8", (64, 8)),
        (parse_heads, "32", (32, 32)),
    ],
)
def test_what_people_write(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize("length", [1000, 1024, 96 * 1024, 2**20, 3 * 2**20])
def test_a_length_that_is_printed_is_read(length):
    assert parse_tokens(tokens(length)) == length


@pytest.mark.parametrize("seconds", [3.2e-6, 0.0012, 0.75, 12.5])
def test_a_time_that_is_printed_is_read(seconds):
    assert parse_seconds(time_text(seconds)) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (parse_tokens, ["", "k", "32x", "0.3k", "-5", "1e3", "."]),
        (parse_seconds, ["soon", "-1", "nan", "1e9", "12 days", "300 h"]),
        (parse_bytes, ["", "80", "GB", "80 apples", "-80GB"]),
        (parse_share, ["nan", "half"]),
        (parse_heads, ["8:", "-8", "9" * 5000, ":8", "8:8:8", "8:3", "4:8", "0:0"]),
    ],
)
def test_anything_else_is_refused(read, texts):
    for text in texts:
        with pytest.raises(RequestError, match=r"[Gg]ive"):
            read(text)
