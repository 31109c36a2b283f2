"""Cached answers of plugins, stored in the cache folder under a hash of the plugin's metadata and module.

If the cache cannot be read or written, everything still works, only slower.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from longca.discovery.candidates import Candidate
from longca.discovery.module_specs import module_specs
from longca.import_path import import_path
from longca.manifests import API_VERSION, KernelManifest, Offer, StrategyManifest
from longca.paths import cache_dir

__all__ = ["MOST_BYTES", "Answer", "SourceFile", "recall", "remember", "stamp"]

#: Bytes of the longest answer.
MOST_BYTES = 2**24

#: The path of a file, its time of change in ns, and its size.
SourceFile = tuple[str, int, int]
_Sentence = Annotated[str, Field(max_length=5000)]


class Answer(BaseModel):
    """The result of importing a plugin and calling its hooks in a process of its own.

    Attributes:
        problem: The reason why it must not be imported. Empty if it may be.
        imports_torch: Whether the import imported torch.
        can_veto: Whether it implements `supports_mask`.
        kernels: Its valid kernel manifests.
        strategies: Its valid strategy manifests.
        problems: Problems with its hooks and manifests.
        seconds: The time of its import and of its hooks.
        files: The files that it imported. The answer counts while they stay as they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem: _Sentence = ""
    imports_torch: bool = False
    can_veto: bool = False
    kernels: tuple[KernelManifest, ...] = ()
    strategies: tuple[StrategyManifest, ...] = ()
    problems: Annotated[tuple[_Sentence, ...], Field(max_length=5000)] = ()
    seconds: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    files: tuple[SourceFile, ...] = ()


def recall(candidate: Candidate) -> Answer | None:
    """The cached answer for a plugin, or None."""
    try:
        path = _path(candidate)
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            return None
        answer = Answer.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return answer if all(stamp(file[0]) == file for file in answer.files) else None


def remember(candidate: Candidate, answer: Answer) -> None:
    """Stores an answer, if the cache can be written."""
    path = _path(candidate)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(answer.model_dump_json())
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise


def stamp(path: str) -> SourceFile | None:
    """A file's path, time of change and size, or None if it is not there."""
    try:
        about = os.stat(path)
    except (OSError, ValueError):
        return None
    return path, about.st_mtime_ns, about.st_size


def _path(candidate: Candidate) -> Path:
    """The file of a plugin's answer. No name chosen by the plugin is part of the path.

    An answer counts only while the same distributions are installed, because a plugin may look for one.
    """
    made_of = repr(
        (
            (API_VERSION, _core_version(), sys.version, sys.prefix, _environment()),
            (candidate.distribution, candidate.version, candidate.module, candidate.attr, candidate.record),
            list(_module_files(candidate.module)),
        )
    )
    digest = hashlib.sha256(made_of.encode("utf-8", "surrogatepass")).hexdigest()
    return cache_dir() / "plugins" / f"{digest}.json"


@cache
def _core_version() -> tuple[SourceFile | None, ...]:
    """The state of the modules that judge a manifest. Another release of the core may judge otherwise."""
    kinds = (KernelManifest, Offer, StrategyManifest, Answer)
    return tuple(stamp(str(sys.modules[kind.__module__].__file__)) for kind in kinds)


def _module_files(module: str) -> Iterator[SourceFile]:
    """The files of a module and its parents, found without importing any.

    In an editable install these files change while RECORD stays the same.
    """
    with suppress(OSError):
        for spec in module_specs(module):
            if spec.has_location and spec.origin:
                about = os.stat(spec.origin)
                yield spec.origin, about.st_mtime_ns, about.st_size


@cache
def _environment() -> str:
    """A hash of the names and versions of all installed distributions, read from the names of their folders."""
    names = []
    for folder in import_path():
        with suppress(OSError):
            names += [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]
    return hashlib.sha256("\n".join(sorted(names)).encode("utf-8", "surrogateescape")).hexdigest()
