"""Cached answers of probed plugins, stored in the cache folder under a hash of the plugin's files.

If the cache cannot be read or written, everything still works, only slower.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from longca.discovery.candidates import Candidate
from longca.manifests import API_VERSION
from longca.paths import cache_dir

__all__ = ["Answer", "recall", "remember"]


@dataclass(frozen=True)
class Answer:
    """The result of importing a plugin in its own process.

    Attributes:
        problem: The reason why it must not be imported here. Empty if it may be.
        imports_torch: Whether the import imported torch.
    """

    problem: str = ""
    imports_torch: bool = False


def recall(candidate: Candidate) -> Answer | None:
    """The cached answer for a plugin, or None.

    A bad answer counts only while the same distributions are installed, because a missing package may have been added.
    """
    try:
        kept = json.loads(_path(candidate).read_text("utf-8"))
        problem, imports_torch, environment = kept["problem"], kept["imports_torch"], kept["environment"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (isinstance(problem, str) and isinstance(imports_torch, bool)):
        return None
    return Answer(problem, imports_torch) if not problem or environment == _environment() else None


def remember(candidate: Candidate, answer: Answer) -> None:
    """Stores an answer, if the cache can be written."""
    path = _path(candidate)
    kept = json.dumps({**asdict(answer), "environment": _environment() if answer.problem else ""})
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(kept)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def _path(candidate: Candidate) -> Path:
    """The file of a plugin's answer. No name chosen by the plugin is part of the path."""
    made_of = repr(
        (
            (API_VERSION, sys.version, sys.prefix),
            (candidate.distribution, candidate.version, candidate.module, candidate.attr, candidate.record),
            list(_module_files(candidate.module)),
        )
    )
    digest = hashlib.sha256(made_of.encode("utf-8", "surrogatepass")).hexdigest()
    return cache_dir() / "plugins" / f"{digest}.json"


def _module_files(module: str) -> Iterator[tuple[str, int, int]]:
    """(path, mtime in ns, size) of the files of a module and its parents, found without importing any.

    In an editable install these files change while RECORD stays the same.
    """
    where, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            specs = (finder.find_spec(name, where) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is None:
                return
            where = spec.submodule_search_locations and list(spec.submodule_search_locations)
            if spec.has_location and spec.origin:
                stat = os.stat(spec.origin)
                yield spec.origin, stat.st_mtime_ns, stat.st_size
        except Exception:  # a third-party finder may raise anything
            return


@cache
def _environment() -> str:
    """A hash of the names and versions of all installed distributions, read from the names of their folders."""
    names = []
    for folder in sys.path:
        with suppress(OSError):
            names += [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))]
    return hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()
