"""Text for a terminal: names that others chose, made harmless; and the marks and console of every listing."""

from __future__ import annotations

import sys
import unicodedata

from rich.console import Console
from rich.markup import escape

__all__ = ["console", "marks", "printable", "safe"]

# Cc: control characters, C0 and C1; Cf: invisible ones, bidirectional overrides among them; Cs: lone surrogates;
# Zl and Zp: line and paragraph separators.
_HARMFUL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """The text with every character that could move a cursor, hide or reorder text written as \\xNN or \\uNNNN."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _HARMFUL else char for char in text)


def safe(text: object) -> str:
    """Text of somebody else's, printable and with rich's markup escaped: `[red]` is shown, not obeyed."""
    return escape(printable(str(text)))


def _escaped(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def console() -> Console:
    """The console of a listing: as wide as the terminal, or as COLUMNS says."""
    return Console(highlight=False, emoji=False)


def marks() -> tuple[str, str, str]:
    """Marks for yes, no and nothing: ✓ ✗ ·, or plain text where standard output cannot encode those."""
    try:
        "✓✗·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ok", "NO", "."
    return "✓", "✗", "·"
