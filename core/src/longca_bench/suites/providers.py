"""Providers: where what a suite names, and nobody provides here, is to be had."""

from __future__ import annotations

from longca.manifests import installed_version

__all__ = ["how_to_get"]


def how_to_get(distribution: str) -> str:
    """What to do about a distribution that does not provide here what it should."""
    if installed_version(distribution) is None:
        return f"{distribution} is not installed. Install it: pip install {distribution}"
    return f"{distribution} is installed, but does not provide it here; `longca plugins` says why"
