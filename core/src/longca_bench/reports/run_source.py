"""A run: its records and the environment that they were measured in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["Run", "flatten", "open_run"]


@dataclass(frozen=True)
class Run:
    """A run that was measured.

    Attributes:
        folder: Where it lies.
        records: Its records. There is at least one.
        environment: Its environment. None without environment.json.
    """

    folder: Path
    records: tuple[Record, ...]
    environment: dict[str, Any] | None

    @property
    def suites(self) -> list[str]:
        """Name, version and digest of each suite in it."""
        found = ((r.suite, r.suite_version, r.suite_digest) for r in self.records)
        return [f"{name} {version} ({digest})" for name, version, digest in dict.fromkeys(found)]


def open_run(path: Path) -> Run:
    """A run from its folder, or from the records in it.

    Raises:
        RequestError: There are no records, or a line is not one.
    """
    from longca_bench.measuring.records import read_records

    if not path.exists():
        raise RequestError(f"{path} does not exist; give the folder of a run, or its records.jsonl")
    if path.is_dir() and not (path / "records.jsonl").exists():
        raise RequestError(f"{path} has no records.jsonl; give the folder that `longca run` wrote")
    records = tuple(read_records(path))
    if not records:
        raise RequestError(f"{path} holds no records yet")
    folder = path if path.is_dir() else path.parent
    return Run(folder, records, _environment(folder / "environment.json"))


def flatten(environment: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of an environment as a dotted name and its text. Null is left out."""
    for key, value in environment.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        elif value is not None:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _environment(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {file}: {error}") from None
    if not isinstance(found, dict):
        raise RequestError(f"{file} holds no environment: a JSON object was expected")
    return found
