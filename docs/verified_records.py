"""Records of `longca verify --json` in `results`: the newest of each kernel, and whether it is of today's code.

A record of today names when, where, with which versions and with which sources its kernel was verified. An earlier one
is a list of offers alone, so neither its date nor its code is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

__all__ = ["VerifiedKernel", "newest", "read", "standing", "table_rows"]

ROOT = Path(__file__).resolve().parents[1]
#: Versions that every record has, and the table does not.
_COMMON = {"python", "triton", "longca-core"}


@dataclass(frozen=True)
class VerifiedKernel:
    """The record of a kernel or a pair.

    Attributes:
        record: The file, from the root of the repository.
        offers: The checks of its offers, as `longca verify --json` prints them.
        finished: The time of the last check, in UTC, as ISO 8601. Empty in an earlier record.
        device: The device. Empty in an earlier record.
        versions: Versions of Python and of packages. Empty in an earlier record.
        sources: Digests of its import packages. Empty in an earlier record.
    """

    record: str
    offers: list[dict[str, Any]]
    finished: str = ""
    device: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    sources: dict[str, str | None] = field(default_factory=dict)


def read(path: Path, record: str = "") -> dict[str, VerifiedKernel]:
    """The kernels of a file.

    Args:
        path: The file.
        record: The name of the record. The path's own without it.
    """
    found = {}
    for kernel, each in json.loads(path.read_text(encoding="utf-8")).items():
        about = {"offers": each} if isinstance(each, list) else {k: v for k, v in each.items() if k in _FIELDS}
        found[kernel] = VerifiedKernel(record or str(path), **about)
    return found


_FIELDS = {"offers", "finished", "device", "versions", "sources"}


def newest() -> dict[str, VerifiedKernel]:
    """The newest record of each kernel and pair. A record without a date is older than one with a date."""
    every = (read(path, path.relative_to(ROOT).as_posix()) for path in sorted(ROOT.glob("results/*/verify*.json")))
    found: dict[str, VerifiedKernel] = {}
    for kernel, each in (item for kernels in every for item in kernels.items()):
        if kernel not in found or each.finished > found[kernel].finished:
            found[kernel] = each
    return found


def standing(recorded: VerifiedKernel, today: dict[str, str | None]) -> str:
    """What a record says about today's code.

    Args:
        recorded: The record.
        today: The digests of the kernel's sources today.
    """
    if not recorded.sources:
        return "verified with earlier code, date not recorded"
    unknown = [name for name, digest in today.items() if digest is None or recorded.sources.get(name) is None]
    changed = [name for name, digest in today.items() if recorded.sources.get(name) != digest]
    if unknown:
        return f"not known: {_list(unknown)} has no digest"
    return f"verified with earlier code: {_list(changed)} changed" if changed else "today's code"


def table_rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """Rows of kernels, the time of their check, the device, versions, the record's standing today, and its file."""
    from longca import registry
    from longca_bench.conformance.sources import source_digests

    found = sorted(
        (*_about(recorded), standing(recorded, source_digests(registry(), kernel)), f"`{recorded.record}`", kernel)
        for kernel, recorded in newest().items()
    )
    for about, some in groupby(found, key=lambda row: row[:-1]):
        yield _list([row[-1] for row in some]), *about


def _about(recorded: VerifiedKernel) -> tuple[str, str, str]:
    versions = [f"{name} {version}" for name, version in recorded.versions.items() if version and name not in _COMMON]
    return recorded.finished[:10], recorded.device.get("name", ""), ", ".join(versions)


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
