"""A run: its records and the environment that they were measured in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca.plain_text import printable

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["Run", "complaints", "flatten", "open_run", "unreached"]

_MOST_NAMED = 10  # wrong lines that are named before they are only counted


@dataclass(frozen=True)
class Run:
    """A run that was measured.

    Attributes:
        folder: Where it lies.
        records: Its records. There is at least one.
        environment: Its environment. None without environment.json.
        notes: Sentences about lines that are wrong or missing. Wrong lines are left out of the records.
    """

    folder: Path
    records: tuple[Record, ...]
    environment: dict[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def suites(self) -> list[str]:
        """Name, version and digest of each suite in it."""
        found = ((r.suite, r.suite_version, r.suite_digest) for r in self.records)
        return [f"{name} {version} ({digest})" for name, version, digest in dict.fromkeys(found)]


def open_run(path: Path) -> Run:
    """A run from its folder, or from the records in it.

    Raises:
        RequestError: There are no records, or a file cannot be read.
    """
    from longca_advice.record_lines import RECORDS, read_lines
    from longca_bench.measuring.records import parsed

    if not os.path.exists(path):  # a Path refuses a name that is too long with another error
        raise RequestError(f"{path} does not exist; give the folder of a run, or its records.jsonl")
    if path.is_dir() and not os.path.lexists(path / RECORDS):
        raise RequestError(f"{path} has no {RECORDS}; give the folder that `longca run` wrote")
    held = read_lines(path)
    records, notes = parsed(held)
    latest = tuple({record.case: record for record in records}.values())
    if not latest:
        raise RequestError(notes[0] if notes else f"{path} holds no records yet")
    folder = path if path.is_dir() else path.parent
    return Run(folder, latest, _environment(folder, held.environment), tuple(notes))


def complaints(runs: Iterable[Run]) -> list[str]:
    """Sentences about the wrong and missing lines of runs, for people. Empty if all lines are intact."""
    notes = [printable(note) for run in runs for note in run.notes]
    if not notes:
        return []
    more = [f"{len(notes) - _MOST_NAMED} more lines are wrong or missing"] if len(notes) > _MOST_NAMED else []
    return [*notes[:_MOST_NAMED], *more, "Results leave out the wrong lines, and have all intact ones."]


def unreached(runs: Iterable[Run]) -> list[str]:
    """Sentences about runs that ended before all cases that they began with. Earlier versions wrote no number."""
    found = []
    for run in runs:
        asked, done = (run.environment or {}).get("cases"), len(run.records)
        if isinstance(asked, int) and done < asked:
            found.append(
                printable(f"{run.folder} has {done} of {asked} cases, because the run ended before the others")
            )
    return found


def flatten(environment: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of an environment as a dotted name and its text. Null is left out."""
    for key, value in environment.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        elif value is not None:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _environment(folder: Path, content: bytes | None) -> dict[str, Any] | None:
    from longca_advice.record_lines import parse_json

    if content is None:
        return None
    try:
        found = parse_json(content)
        if not isinstance(found, dict):
            raise ValueError("it holds no environment: a JSON object was expected")
    except ValueError as error:
        raise RequestError(f"cannot read {folder / 'environment.json'}: {error}") from None
    return found
