"""Parts of pages that a command writes in place, or with `--check` names where they are stale."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["write"]


def write(
    root: Path,
    pages: Iterable[Path],
    stale: Callable[[str], list[str]],
    rewritten: Callable[[str], str],
    arguments: list[str],
) -> int:
    """Writes the stale parts of pages again.

    Args:
        root: The folder that pages are named from.
        pages: The pages.
        stale: The names of a page's stale parts.
        rewritten: The page with today's parts.
        arguments: Those of the command: `--check` only names the stale parts.

    Returns:
        The exit code: 1 if `--check` found any.
    """
    old = [(page, name) for page in pages for name in stale(page.read_text(encoding="utf-8"))]
    for page, name in old:
        print(f"{page.relative_to(root)}: {name}")
    if arguments == ["--check"]:
        return bool(old)
    for page in dict.fromkeys(page for page, _ in old):
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0
