"""The folder of a run: `environment.json`, written once, and `records.jsonl`, with one flushed line for each record.

One process at a time writes to it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from longca.errors import RecordError, RequestError
from longca_bench.measuring.records import ENVIRONMENT, RECORDS, Record, load_environment, records_of
from longca_bench.measuring.status import Status

__all__ = ["RunFolder"]

#: Parts of the environment that a resumed run must share with the earlier one.
_SAME = ("suite", "python", "device", "cuda", "packages", "plugins", "git_revision")
#: Differences that a message names.
_NAMED = 5
#: Errors of a write for which there was no room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunFolder:
    """The folder of one run. It is locked until it is closed or the process ends, on file systems that have locks.

    The environment is written to `environment.json`, or compared with it on `resume`. `earlier` has the records of the
    earlier run, whose last line is dropped if it is `torn`. `added` counts the records that were appended.

    A folder with records that is not resumed, or that is another run's, is locked or cannot be written to, is a
    RequestError. Its records are then as they were.
    """

    def __init__(self, path: Path, environment: dict[str, Any], *, resume: bool = False) -> None:
        self.path, self.records = path, path / RECORDS
        self.earlier: list[Record] = []
        self.torn, self.added = False, 0
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = self.records.open("ab+", buffering=0)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            self._lock()
            self._begin(environment, resume)
        except BaseException:
            self.close()
            raise

    @property
    def done(self) -> set[str]:
        """The cases that have a record. A skipped case counts as missing."""
        return {record.case for record in self.earlier if record.status is not Status.SKIPPED}

    def append(self, record: Record) -> None:
        """Adds a record, and flushes it to the disk. On a RecordError the records before it are intact."""
        left, state = memoryview(record.model_dump_json().encode() + b"\n"), os.fstat(self._file.fileno())
        if state.st_nlink == 0:
            raise RecordError(f"{self.records} was removed during the run; run again with another --out")
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(state.st_size)
            remedy = "make it writable, or name a copy of the folder with --out,"
            if error.errno in _FULL:
                remedy = "make room"
            raise RecordError(
                f"cannot write to {self.records}: {error.strerror}. The records before it are intact; "
                f"{remedy} and continue with --resume"
            ) from None
        self.added += 1

    def close(self) -> None:
        """Closes the file and gives the lock back."""
        self._file.close()

    def _unwritable(self, error: OSError) -> RequestError:
        return RequestError(f"cannot write to {self.path}: {error.strerror}. Choose another folder with --out")

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(
                f"another run writes to {self.path}; wait until it has ended, or choose another folder with --out"
            ) from None
        except OSError:
            return  # This file system has no locks.

    def _begin(self, environment: dict[str, Any], resume: bool) -> None:
        """Checks the earlier run, and only then writes: the environment of a first run, or the end of a torn line."""
        content = self.records.read_bytes()
        if content and not resume:
            raise RequestError(
                f"{self.path} holds the records of another run; choose another folder with --out, "
                "or continue that run with --resume"
            )
        end = content.rfind(b"\n") + 1
        self.torn = end < len(content)
        if content:
            self._check_environment(environment)
            self._read_earlier()
        try:
            if self.torn:
                self._file.truncate(end)
            if not self.earlier:
                (self.path / ENVIRONMENT).write_text(json.dumps(environment, indent=2) + "\n", "utf-8")
        except OSError as error:
            raise self._unwritable(error) from None

    def _check_environment(self, environment: dict[str, Any]) -> None:
        there = load_environment(self.path)
        if there is None:
            raise RequestError(f"cannot resume {self.path}: {ENVIRONMENT} is missing. Start another run with --out")
        now = json.loads(json.dumps(environment))
        same = (*_SAME, "torch_threads") if now["device"]["kind"] == "cpu" else _SAME
        differing = [said for key in same for said in _differences(there.get(key), now.get(key), key)]
        if differing:
            more = f"; and {len(differing) - _NAMED} more differences" if len(differing) > _NAMED else ""
            said = "; ".join(differing[:_NAMED])
            raise RequestError(f"cannot resume {self.path}: {said}{more}. Start another run with --out")

    def _read_earlier(self) -> None:
        notes: list[str] = []
        self.earlier = list(records_of(self.records, notes, whole=True))
        if notes:
            more = f"; and {len(notes) - 1} more lines" if len(notes) > 1 else ""
            raise RequestError(f"cannot resume: {notes[0]}{more}. Correct the file, or start another run with --out")


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
