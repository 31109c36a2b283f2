"""Finding plugins: the distributions with an entry point in the group `longca`, and which of them are switched on.

Nothing is imported here. A distribution's metadata is only text until `admission` has imported the plugin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from importlib_metadata import PackageNotFoundError
from packaging.utils import canonicalize_name

from longca.distributions import CORE, Metadata, UnreadableError, distributions, find_core
from longca.errors import RequestError, UnknownNameError
from longca.plain_text import plain_text

__all__ = ["CORE", "GROUP", "Candidate", "find_plugins", "why_off"]

GROUP = "longca"
_MOST = 200
#: Entry points of one distribution. Each is imported in a process of its own.
_MOST_POINTS = 50


@dataclass(frozen=True)
class Candidate:
    """One entry point. Its texts are bounded and printable.

    Attributes:
        name: The entry point's name. Two distributions may use the same one.
        distribution: The distribution's name. The name of its metadata's folder if the distribution has a fault.
        version: The distribution's version.
        module: The module that the entry point names.
        attr: The object in the module, if the entry point names one. Else empty.
        record: The distribution's list of files with their hashes. Empty if it has none.
        is_core: Whether this is the core's own plugin.
        fault: The reason why the distribution is not used. Empty for most.
    """

    name: str
    distribution: str
    version: str
    module: str
    attr: str
    record: str
    is_core: bool = False
    fault: str = ""

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
    for distribution in distributions():
        try:
            candidates = list(_candidates(distribution))
        except UnreadableError as error:
            candidates = [_faulty(distribution, f"{error}. Reinstall or remove the distribution")]
        except Exception as error:  # a third-party finder, or a parser that meets random text, may raise anything
            said = f"{type(error).__name__}: {plain_text(error, _MOST)}".rstrip(": ")
            candidates = [_faulty(distribution, f"its metadata cannot be read: {said}")]
        if candidates:
            # As in an import, the first distribution on sys.path hides others of the same name.
            found.setdefault(canonicalize_name(candidates[0].distribution), candidates)
    return sorted((candidate for group in found.values() for candidate in group), key=lambda c: c.order)


def _candidates(distribution: Metadata) -> Iterator[Candidate]:
    if GROUP not in (distribution.read_text("entry_points.txt") or ""):
        return
    points = distribution.entry_points.select(group=GROUP)
    if not points:
        return
    name, version = plain_text(distribution.name, _MOST), plain_text(distribution.version, _MOST)
    is_core = canonicalize_name(name) == CORE
    if is_core and not _is_running(distribution):
        yield _faulty(distribution, f"it calls itself {name}, and the files of {CORE} are elsewhere. Remove it")
        return
    record = distribution.read_text("RECORD") or ""
    if len(points) > _MOST_POINTS:
        fault = f"it has {len(points)} entry points in the group {GROUP}, and at most {_MOST_POINTS} are taken"
        yield Candidate("", name, version, "", "", "", fault=f"{fault}; the others are left out")
    for point in islice(points, _MOST_POINTS):
        try:
            module, attr = point.module, point.attr or ""
        except (AttributeError, ValueError):
            module, attr = point.value, ""
        entry, module, attr = (plain_text(text, _MOST) for text in (point.name, module, attr))
        yield Candidate(entry, name, version, module, attr, record, is_core)


def _is_running(distribution: Metadata) -> bool:
    """Whether the packages that run now are this distribution's."""
    try:
        return distribution.folder == find_core().folder
    except PackageNotFoundError:
        return False


def _faulty(distribution: Metadata, fault: str) -> Candidate:
    return Candidate("", plain_text(distribution.folder_name, _MOST), "", "", "", "", fault=fault)


def why_off(candidates: list[Candidate], disabled: frozenset[str]) -> dict[Candidate, str]:
    """The reason why each plugin is switched off, as a phrase. It is empty for plugins that are on.

    If LONGCA_PLUGINS is set, it names the plugins that are on, separated by commas. The core is always on.

    Raises:
        UnknownNameError: No plugin has this name.
        RequestError: The name is the core's, which cannot be switched off.
    """
    allowed = _allow_list()
    known = {name for c in candidates for name in (c.name, c.distribution) if name}
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
