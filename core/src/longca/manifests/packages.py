"""Installed packages, looked up by distribution name and without importing any of them.

An importable name proves nothing: `flash-attn-4` alone makes `import flash_attn` succeed.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from importlib_metadata import PackageNotFoundError, version
from importlib_metadata import distribution as find
from packaging.requirements import Requirement
from packaging.version import InvalidVersion

__all__ = ["alternatives", "direct_url", "installed_version", "missing", "sources_digest"]

#: The files whose changes are another version of the code.
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".h", ".so")


@cache
def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution. None without one."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def direct_url(distribution: str) -> dict[str, Any]:
    """The place that a distribution was installed from, as PEP 610 has it. Empty if it is an index or unknown."""
    try:
        return dict(json.loads(find(distribution).read_text("direct_url.json") or "{}"))
    except (PackageNotFoundError, ValueError):
        return {}


@cache
def sources_digest(distribution: str) -> str:
    """16 hex digits of the sources of a distribution that is installed editable. Empty for any other one."""
    url = direct_url(distribution)
    if not url.get("dir_info", {}).get("editable"):
        return ""
    found, root = hashlib.sha256(), Path(unquote(urlsplit(url["url"]).path))
    for path in sorted((root / "src" if (root / "src").is_dir() else root).rglob("*")):
        if path.suffix in _SOURCES:
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def alternatives(requirement: str) -> tuple[Requirement, ...]:
    """The alternatives of a requirement string, which bars separate: `a>=3 | b`."""
    return tuple(Requirement(text) for text in requirement.split("|"))


@cache
def missing(requirement: str) -> str | None:
    """The reason why a requirement is not met here, as a phrase. None if it is met or does not apply."""
    wrong = [_missing(wanted) for wanted in alternatives(requirement)]
    return None if None in wrong else ", and ".join(text for text in wrong if text is not None)


def _missing(wanted: Requirement) -> str | None:
    if wanted.marker is not None and not wanted.marker.evaluate():
        return None
    found = installed_version(wanted.name)
    if found is None:
        return f"{wanted.name} is not installed"
    try:
        fits = wanted.specifier.contains(found, prereleases=True)
    except InvalidVersion:
        fits = False
    return None if fits else f"{wanted.name} {found} is installed"
