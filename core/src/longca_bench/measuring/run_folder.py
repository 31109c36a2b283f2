"""The folder of a run: `environment.json`, written once, and `records.jsonl`, with one flushed line for each record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from longca.errors import RecordError, RequestError
from longca_bench.measuring.records import Record, parse_records
from longca_bench.measuring.status import Status

__all__ = ["RunFolder"]

#: Parts of the environment that a resumed run must share with the earlier one.
_SAME = ("suite", "python", "device", "cuda", "packages", "plugins", "git_revision")
#: Differences that a message names.
_NAMED = 5


class RunFolder:
    """The folder of one run.

    Args:
        path: The folder. It is made if it is missing.
        environment: The environment, which is written to `environment.json` or compared with it.
        resume: Whether to continue the run in the folder.

    Raises:
        RequestError: The folder has records, and `resume` is false. Or the records are from another suite, machine or
            version of the code, or were edited. Or the folder cannot be written to.

    Attributes:
        path: The folder.
        records: The file of records.
        earlier: The records of the earlier run.
        torn: Whether the last line of the earlier run was torn, and so was dropped.
    """

    def __init__(self, path: Path, environment: dict[str, Any], *, resume: bool = False) -> None:
        self.path, self.records = path, path / "records.jsonl"
        self.earlier: list[Record] = []
        self.torn = False
        if self.records.exists():
            if not resume:
                raise RequestError(
                    f"{path} holds the records of another run; choose another folder with --out, "
                    "or continue that run with --resume"
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
        """The cases that have a record. A skipped case counts as missing."""
        return {record.case for record in self.earlier if record.status is not Status.SKIPPED}

    def append(self, record: Record) -> None:
        """Adds a record, and flushes it to the disk.

        Raises:
            RecordError: The record could not be written. The records before it are intact.
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
                "make room and continue with --resume"
            ) from None

    def _drop_after(self, size: int) -> None:
        """Drops a record that was written in part. Closing the file would try to write the rest of it."""
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
        differing = [said for key in _SAME for said in _differences(there.get(key), now.get(key), key)]
        if differing:
            more = f"; and {len(differing) - _NAMED} more differences" if len(differing) > _NAMED else ""
            said = "; ".join(differing[:_NAMED])
            raise RequestError(f"cannot resume {self.path}: {said}{more}. Start another run with --out")

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
                    f"{self.records}, line {number}: this record is from another suite, or from another version of it"
                )


def _differences(then: Any, now: Any, name: str) -> Iterator[str]:
    """The differences between two values of an environment, each as a clause."""
    if then == now:
        return
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*then, *now)):
            yield from _differences(then.get(key), now.get(key), f"{name} {key}")
    else:
        yield f"{name.replace('_', ' ')} was {_brief(then)} and is {_brief(now)}"


def _brief(value: Any) -> str:
    """A value of an environment in plain words."""
    if isinstance(value, dict):
        return " ".join(str(part) for part in value.values() if part is not None)
    if isinstance(value, list):
        return ".".join(map(str, value))
    return "missing" if value is None else str(value)
