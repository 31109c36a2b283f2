"""A run: its records and the environment that they were measured in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca.plain_text import printable

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["Run", "complaints", "flatten", "open_run", "read_run", "runs_in"]

RECORDS = "records.jsonl"
_MOST_NAMED = 10  # wrong lines that are named before they are only counted


@dataclass(frozen=True)
class Run:
    """A run that was measured.

    Attributes:
        folder: Where it lies.
        records: Its records. Empty if they were not kept in memory.
        environment: Its environment. None without environment.json.
        notes: Sentences about lines that are wrong. These lines are left out of the records.
    """

    folder: Path
    records: tuple[Record, ...] = ()
    environment: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def open_run(path: Path) -> Run:
    """A run with its records, from its folder or from the records in it. The last record of a case counts.

    Raises:
        RequestError: There are no records, or a file cannot be read.
    """
    from longca_bench.measuring.records import records_of

    run = read_run(path)
    latest = tuple({record.case: record for record in records_of(path, run.notes)}.values())
    if not latest:
        raise no_records(path, run)
    return Run(run.folder, latest, run.environment, run.notes)


def read_run(path: Path) -> Run:
    """A run without its records.

    Raises:
        RequestError: There is no such run, or its environment cannot be read.
    """
    from longca_bench.measuring.records import load_environment

    if not os.path.exists(path):  # a Path refuses a name that is too long with another error
        raise RequestError(f"{path} does not exist; give the folder of a run, or its {RECORDS}")
    if path.is_dir() and not (path / RECORDS).exists():
        raise RequestError(f"{path} has no {RECORDS}; give the folder that `longca run` wrote")
    folder = path if path.is_dir() else path.parent
    return Run(folder, (), load_environment(folder))


def runs_in(path: Path) -> list[Path]:
    """A run, or the runs in the folders of a folder."""
    if not os.path.isdir(path) or (path / RECORDS).exists():
        return [path]
    return sorted(file.parent for file in path.glob(f"*/{RECORDS}")) or [path]


def no_records(path: Path, run: Run) -> RequestError:
    """The error of a run without a record that can be read."""
    return RequestError(run.notes[0] if run.notes else f"{path} holds no records yet")


def complaints(runs: Iterable[Run]) -> list[str]:
    """Sentences about the wrong lines of runs, for people. Empty if all lines could be read."""
    notes = [printable(note) for run in runs for note in run.notes]
    if not notes:
        return []
    more = [f"{len(notes) - _MOST_NAMED} more lines are wrong"] if len(notes) > _MOST_NAMED else []
    return [*notes[:_MOST_NAMED], *more, "Results leave out the wrong lines, and have all others."]


def flatten(environment: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of an environment as a dotted name and its text. Null is left out."""
    for key, value in environment.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{name}.")
        elif value is not None:
            yield name, value if isinstance(value, str) else json.dumps(value)
