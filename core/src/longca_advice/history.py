"""History: the evidence of this machine. `longca run` adds a line for each verified measurement.

The file is `evidence.jsonl` in the user's data folder, or the path in LONGCA_HISTORY. The full records are in each
run's own folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import platformdirs

from longca.errors import RequestError
from longca_advice.evidence import Row, parse, to_line

__all__ = ["History", "append", "history", "history_path"]


@dataclass(frozen=True, eq=False)
class History:
    """The content of the history file. An instance equals only itself, so that models can be cached by it.

    Attributes:
        rows: The measurements, oldest first. A later measurement of a case replaces the earlier one.
        wrong: The errors of invalid lines. These lines are left out.
    """

    rows: tuple[Row, ...]
    wrong: tuple[str, ...]


_NOTHING = History((), ())


def history_path() -> Path:
    """The path of this machine's evidence."""
    named = os.environ.get("LONGCA_HISTORY")
    return Path(named) if named else platformdirs.user_data_path("longca") / "evidence.jsonl"


def append(row: Row) -> None:
    """Adds a measurement. A folder that cannot be written to is no error: the run's own records are elsewhere."""
    path = history_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            # A writer that was killed left a line without an end. The new line must not be lost with it.
            torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n"
            file.write(b"\n" * torn + to_line(row).encode() + b"\n")
    except OSError:
        return


def history() -> History:
    """This machine's measurements. The file is read again only when it has changed."""
    path = history_path()
    try:
        status = path.stat()
        return _read(path, status.st_mtime_ns, status.st_size)
    except OSError:
        return _NOTHING


@lru_cache(maxsize=1)
def _read(path: Path, _changed: int, _size: int) -> History:
    rows: dict[tuple[str, str, str, str], Row] = {}
    wrong: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            for row in parse([line], str(path), first=number):
                case = (row.run.device, row.case or f"line {number}", row.kernel, row.direction)
                rows.pop(case, None)
                rows[case] = row
        except RequestError as error:
            wrong.append(str(error))
    return History(tuple(rows.values()), tuple(wrong))
