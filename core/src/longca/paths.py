"""The folder of LongCA's caches."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """The folder of caches: LONGCA_CACHE_DIR, or the user's cache folder. It need not exist."""
    return Path(os.environ.get("LONGCA_CACHE_DIR") or platformdirs.user_cache_dir("longca", appauthor=False))
