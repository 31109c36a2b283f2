"""Exceptions of plugins in one line."""

from __future__ import annotations

from pydantic import ValidationError

from longca.plain_text import plain_text, type_name

__all__ = ["describe"]


def describe(error: BaseException) -> str:
    """Describes an exception in one line."""
    return f"{type_name(error)}: {_one_line(error)}".rstrip(": ")


def _one_line(error: BaseException) -> str:
    if not isinstance(error, ValidationError):
        return plain_text(error)
    try:
        parts = (f"{'.'.join(map(str, part['loc']))}: {part['msg']}, not {part['input']!r}" for part in error.errors())
        return plain_text("; ".join(parts))
    except Exception:  # repr() of the input raised
        return f"{error.error_count()} fields are wrong"
