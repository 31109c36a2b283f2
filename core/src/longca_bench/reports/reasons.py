"""Reasons against a kernel, in the fewest sentences: each said once, with the names that it is about."""

from __future__ import annotations

from collections.abc import Iterable

from longca.manifests import Reason

__all__ = ["by_reason", "installs"]

_INSTALL = "Install it: "  # the beginning of the advice for a missing package


def by_reason(said: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of each reason.

    Args:
        said: Names, each with a sentence. A sentence that begins with its own name is the same reason as another.

    Returns:
        Names by the sentence without a name.
    """
    found: dict[str, list[str]] = {}
    for name, sentence in said:
        names = found.setdefault(sentence.removeprefix(f"{name} "), [])
        if name not in names:
            names.append(name)
    return found


def installs(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """The commands that install missing packages, each once."""
    advice = (reason.advice for reason in reasons if reason.code == "package")
    return tuple(dict.fromkeys(text.removeprefix(_INSTALL) for text in advice if text.startswith(_INSTALL)))
