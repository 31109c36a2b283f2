"""Text for a terminal: names that others chose, made harmless; and the marks and console of every listing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.markup import escape

from longca.plain_text import printable

__all__ = ["by_reason", "console", "marks", "print_problem", "printable", "safe"]


def safe(text: object) -> str:
    """Text of somebody else's, printable and with rich's markup escaped: `[red]` is shown, not obeyed."""
    return escape(printable(str(text)))


def console(file: TextIO | None = None) -> Console:
    """The console of a listing: as wide as the terminal, or as COLUMNS says. A file gets plain text."""
    return Console(file=file, highlight=False, emoji=False, color_system=None if file else "auto")


def print_problem(console: Console, about: str) -> None:
    """Prints the problem (`Problem.describe`) above its answer."""
    for line in about.splitlines():
        console.print(printable(line), soft_wrap=True, markup=False)
    console.print()


def marks() -> tuple[str, str, str]:
    """Marks for yes, no and nothing: ✓ ✗ ·, or plain text where standard output cannot encode those."""
    try:
        "✓✗·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ok", "NO", "."
    return "✓", "✗", "·"


def by_reason(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of each sentence. A sentence that begins with its own name is the same reason as another."""
    found: dict[str, list[str]] = {}
    for name, sentence in said:
        names = found.setdefault(sentence.removeprefix(f"{name} "), [])
        if name not in names:
            names.append(name)
    return found
