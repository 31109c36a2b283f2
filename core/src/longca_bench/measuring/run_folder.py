"""The folder of a run: `environment.json`, written once, and `records.jsonl`, appended and flushed record by record."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from longca.errors import RecordError, RequestError
from longca_bench.measuring.records import Record, parse_records

__all__ = ["RunFolder"]

#: What must be the same for a run to be resumed: what was measured, on what, with which code.
_SAME = ("suite", "python", "device", "cuda", "packages", "plugins", "git_revision")


class RunFolder:
    """The folder of one run.

    Args:
        path: Where; made if it is not there.
        environment: What to write to `environment.json`, or to hold against what is there.
        resume: Whether to go on with the run that is there.

    Raises:
        RequestError: It holds records, and it was not asked to go on with them, or they were made by another suite,
            on another machine or by other code, or were edited; or it cannot be written to.

    Attributes:
        path: The folder.
        records: The file of records.
        earlier: The records that were there.
        torn: Whether the last line there was torn, and so was dropped.
    """

    def __init__(self, path: Path, environment: dict[str, Any], *, resume: bool = False) -> None:
        self.path, self.records = path, path / "records.jsonl"
        self.earlier: list[Record] = []
        self.torn = False
        if self.records.exists():
            if not resume:
                raise RequestError(
                    f"{path} holds the records of another run; choose another folder with --out, or go on with --resume"
                )
            self._check_environment(environment)
            self._read_earlier(environment["suite"]["digest"])
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not self.earlier:
                text = json.dumps(environment, indent=2) + "\n"
                (path / "environment.json").write_text(text, encoding="utf-8")
            self._file = self.records.open("ab")
        except OSError as error:
            raise RequestError(f"cannot write to {path}: {error.strerror}. Choose another folder with --out") from None

    @property
    def done(self) -> set[str]:
        """Cases that need not be run again."""
        return {record.case for record in self.earlier if record.status != "skipped"}

    def append(self, record: Record) -> None:
        """Adds a record, and sees it to the disk.

        Raises:
            RecordError: It could not be written; the records before it are intact.
        """
        size = self._file.tell()
        try:
            self._file.write(record.model_dump_json().encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._drop_after(size)
            raise RecordError(
                f"cannot write to {self.records}: {error.strerror}. The records before it are intact; "
                "make room and go on with --resume"
            ) from None

    def _drop_after(self, size: int) -> None:
        """Takes back what was written of a record; closing would try to write the rest of it again."""
        with suppress(OSError):
            self._file.raw.close()
        with suppress(OSError):
            os.truncate(self.records, size)

    def close(self) -> None:
        """Closes the file."""
        with suppress(OSError, ValueError):
            self._file.close()

    def _check_environment(self, environment: dict[str, Any]) -> None:
        file = self.path / "environment.json"
        try:
            there = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"cannot resume: {file}: {error}") from None
        now = json.loads(json.dumps(environment))
        differing = [
            f"{key} was {there.get(key)} and is {now.get(key)}" for key in _SAME if there.get(key) != now.get(key)
        ]
        if differing:
            raise RequestError(f"cannot resume {self.path}: {'; '.join(differing)}. Start another run with --out")

    def _read_earlier(self, digest: str) -> None:
        raw = self.records.read_bytes()
        whole, newline, rest = raw.rpartition(b"\n")
        self.torn = bool(rest)
        if self.torn:
            os.truncate(self.records, len(whole) + len(newline))
        self.earlier = list(parse_records(whole.decode("utf-8", "replace").splitlines(), self.records))
        for number, record in enumerate(self.earlier, 1):
            if record.suite_digest != digest:
                raise RequestError(
                    f"{self.records}, line {number}: this record is of another suite, or of another version"
                )
