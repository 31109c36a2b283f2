"""Texts that others chose, made harmless: names, versions, messages and answers of plugins and of kernels."""

from __future__ import annotations

import unicodedata

__all__ = ["plain_text", "printable", "type_name"]

# Cc: control characters, C0 and C1; Cf: invisible ones, bidirectional overrides among them; Cs: lone surrogates;
# Zl and Zp: line and paragraph separators.
_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain_text(value: object, most: int = 2000) -> str:
    """One line of printable text for any object, whatever its `__str__` does.

    White space becomes single spaces, and other harmful characters are escaped. A text that is cut says so.

    Args:
        value: A text, an exception or any other object.
        most: The largest number of characters of the result.
    """
    whole = _as_text(value)
    text = printable(" ".join(whole[: 4 * most].split()))
    if len(text) <= most and len(whole) <= 4 * most:
        return text
    note = f"... ({len(whole)} characters)"
    return (text[: max(most - len(note), 0)] + note)[:most]


def printable(text: str) -> str:
    """The text with every character that could move a cursor, hide or reorder text written as \\xNN or \\uNNNN."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _HARMFUL else char for char in text)


def type_name(value: object) -> str:
    """The name of an object's type, whatever its `__class__` and its metaclass say."""
    return printable(type.__dict__["__name__"].__get__(type(value))[:200])


def _as_text(value: object) -> str:
    """The object's text as an exact `str`. A subclass may lie about its length and its parts."""
    try:
        text = value if issubclass(type(value), str) else str(value)
        return str.__str__(text)
    except BaseException as error:  # a plugin's __str__ may call exit()
        return f"<{type_name(value)}, whose text cannot be made: {type_name(error)}>"


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
