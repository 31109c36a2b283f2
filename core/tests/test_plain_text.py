"""Texts of others: no object, however odd, breaks or leaves its line."""

import pytest

from longca.plain_text import plain_text


class _Raises:
    def __init__(self, error):
        self.error = error

    def __str__(self):
        raise self.error

    __repr__ = __str__

    @property
    def __class__(self):
        raise self.error


class _NoText:
    def __str__(self):
        return 3


class _Odd(str):
    __slots__ = ()

    def __str__(self):
        raise SystemExit(0)

    __len__ = __getitem__ = split = isascii = __str__


class _Nameless(type):
    @property
    def __name__(cls):
        raise RuntimeError


class _OfNameless(metaclass=_Nameless):
    __str__ = _Raises.__str__
    error = ValueError()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: "plain", "plain"),
        (lambda: "größer ✓", "größer ✓"),
        (lambda: "two\nlines\r\n and\ttabs ", "two lines and tabs"),
        (lambda: "a\u2028b\x1b[31mc\x00\u202ed", "a b\\x1b[31mc\\x00\\u202ed"),
        (lambda: "half \ud800 pair", "half \\ud800 pair"),
        (lambda: b"\xff", "b'\\xff'"),
        (lambda: ValueError("broken"), "broken"),
        (lambda: _Raises(SystemExit(0)), "<_Raises, whose text cannot be made: SystemExit>"),
        (lambda: _Raises(RecursionError()), "<_Raises, whose text cannot be made: RecursionError>"),
        (lambda: _NoText(), "<_NoText, whose text cannot be made: TypeError>"),
        (lambda: _Odd("said"), "said"),
        (lambda: _OfNameless(), "<_OfNameless, whose text cannot be made: ValueError>"),
        (lambda: 10**6000, "<int, whose text cannot be made: ValueError>"),
    ],
)
def test_any_object_has_a_text(make, text):
    assert plain_text(make()) == text
    assert text.encode("utf-8").decode("utf-8") == text


@pytest.mark.parametrize("char", ["x", "\x00", "\U000e0001", " "])
def test_a_long_text_is_cut_and_says_so(char):
    text = plain_text(char * 10_000_000)
    assert len(text) <= 2000
    assert text.endswith("... (10000000 characters)")
    assert len(plain_text(char * 100, 10)) <= 10
