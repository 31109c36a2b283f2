"""Finding plugins: the distributions with an entry point in the group `longca`, and which of them are switched on.

Nothing is imported here. A distribution's metadata is only text until `admission` has imported the plugin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import importlib_metadata
from packaging.utils import canonicalize_name

from longca.errors import RequestError, UnknownNameError

__all__ = ["CORE", "GROUP", "Candidate", "find_plugins", "why_off"]

GROUP = "longca"
CORE = "longca-core"


@dataclass(frozen=True)
class Candidate:
    """One entry point.

    Attributes:
        name: The entry point's name. Two distributions may use the same one.
        distribution: The distribution's name.
        version: The distribution's version.
        module: The module that the entry point names.
        attr: The object in the module, if the entry point names one. Else empty.
        record: The distribution's list of files with their hashes. Empty if it has none.
    """

    name: str
    distribution: str
    version: str
    module: str
    attr: str
    record: str

    @property
    def is_core(self) -> bool:
        """Whether this is the core's own plugin."""
        return canonicalize_name(self.distribution) == CORE

    @property
    def order(self) -> tuple[bool, str, str]:
        """Sort key: the core first, then by distribution and entry point."""
        return not self.is_core, canonicalize_name(self.distribution), self.name

    def is_named(self, name: str) -> bool:
        """Whether `name` is the name of the entry point or of the distribution."""
        return name == self.name or canonicalize_name(name) == canonicalize_name(self.distribution)


def find_plugins() -> list[Candidate]:
    """All installed plugins: the core first, then by distribution name."""
    found: dict[str, list[Candidate]] = {}
    for distribution in importlib_metadata.distributions():
        try:
            candidates = list(_candidates(distribution))
        except Exception:  # the metadata is too broken to read
            continue
        if candidates:
            # As in an import, the first distribution on sys.path hides others of the same name.
            found.setdefault(canonicalize_name(candidates[0].distribution), candidates)
    return sorted((candidate for group in found.values() for candidate in group), key=lambda c: c.order)


def _candidates(distribution: Any) -> Iterator[Candidate]:
    if GROUP not in (distribution.read_text("entry_points.txt") or ""):
        return
    points = distribution.entry_points.select(group=GROUP)
    if not points:
        return
    name, version = str(distribution.name), str(distribution.version)
    record = distribution.read_text("RECORD") or ""
    for point in points:
        try:
            module, attr = point.module, point.attr or ""
        except (AttributeError, ValueError):
            module, attr = point.value, ""
        yield Candidate(point.name, name, version, module, attr, record)


def why_off(candidates: list[Candidate], disabled: frozenset[str]) -> dict[Candidate, str]:
    """The reason why each plugin is switched off, as a phrase. It is empty for plugins that are on.

    If LONGCA_PLUGINS is set, it names the plugins that are on, separated by commas. The core is always on.

    Raises:
        UnknownNameError: No plugin has this name.
        RequestError: The name is the core's, which cannot be switched off.
    """
    allowed = _allow_list()
    known = {name for c in candidates for name in (c.name, c.distribution)}
    for name in [*(allowed or ()), *sorted(disabled)]:
        if not any(candidate.is_named(name) for candidate in candidates):
            raise UnknownNameError("plugin", name, known)
    for name in sorted(disabled):
        if any(candidate.is_named(name) and candidate.is_core for candidate in candidates):
            raise RequestError(f"{name!r} is the core's own plugin, which cannot be switched off")
    return {candidate: _reason_off(candidate, allowed, disabled) for candidate in candidates}


def _allow_list() -> list[str] | None:
    text = os.environ.get("LONGCA_PLUGINS")
    return None if text is None else [name for name in map(str.strip, text.split(",")) if name]


def _reason_off(candidate: Candidate, allowed: list[str] | None, disabled: frozenset[str]) -> str:
    if candidate.is_core:
        return ""
    if any(candidate.is_named(name) for name in disabled):
        return "switched off by --no-plugin"
    if allowed is not None and not any(candidate.is_named(name) for name in allowed):
        return "not in LONGCA_PLUGINS"
    return ""
