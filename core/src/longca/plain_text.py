"""Texts in one line for messages and records: errors of kernels, names for a terminal, and times."""

from __future__ import annotations

__all__ = ["dims_text", "plain_text", "printable", "time_text"]


def plain_text(value: object, most: int = 2000) -> str:
    """One printable line of at most `most` characters for a text, an exception or any other object. A cut says so."""
    text = printable(" ".join(str(value).split()))
    if len(text) <= most:
        return text
    note = f"... ({len(text)} characters)"
    return (text[: max(most - len(note), 0)] + note)[:most]


def printable(text: str) -> str:
    """The text with every character that could move a cursor, hide or reorder text written as an escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def dims_text(dim: int, dim_v: int | None = None) -> str:
    """A head dimension as on a command line: `128`, or `192:128` if v has another."""
    return str(dim) if dim_v is None else f"{dim}:{dim_v}"


def time_text(seconds: float) -> str:
    """A time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:{'.3g' if seconds < 999.5 * size else '.0f'}} {unit}"
    return f"{seconds * 1e6:.2g} µs"
