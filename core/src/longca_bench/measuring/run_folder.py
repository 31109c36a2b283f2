"""The folder of a run: `environment.json`, written once, `records.jsonl`, with one flushed line for each record, and
`seal.json`, which says where the lines ended. One process at a time writes to it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from longca.errors import RecordError, RequestError
from longca.regular_files import open_regular, write_all, write_whole
from longca_advice.record_lines import (
    ENVIRONMENT,
    MOST_OF_LINE,
    RECORDS,
    SEAL,
    link_to,
    parse_json,
    read_beside,
    read_lines,
)
from longca_bench.measuring.records import Record, parsed
from longca_bench.measuring.status import Status

__all__ = ["RunFolder"]

#: Bytes up to which all records are read again before each one. Reading more takes long beside a short case.
_READ_AGAIN = 2**20
#: Parts of the environment that a resumed run must share with the earlier one.
_SAME = ("suite", "python", "device", "cuda", "packages", "plugins", "git_revision")
#: Differences that a message names.
_NAMED = 5
#: The file for the records of a run whose file was taken away.
_RESCUED = "records.rescued.jsonl"
#: Errors of a write for which there was no room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunFolder:
    """The folder of one run. It is locked until it is closed or the process ends, on file systems that have locks.

    Args:
        path: The folder. It is made if it is missing.
        environment: The environment, which is written to `environment.json` or compared with it.
        resume: Whether to continue the run in the folder.

    Raises:
        RequestError: The folder has records, and `resume` is false. Or the records are from another suite, machine or
            version of the code, or were edited. Or another run writes to the folder, or it cannot be written to. The
            folder's records are then as they were.

    Attributes:
        path: The folder.
        records: The file of records.
        earlier: The records of the earlier run.
        torn: Whether the last line of the earlier run was torn, and so was dropped.
        added: Number of records that were appended.
        fault: What was wrong when the folder was closed, in sentences. Empty if nothing did.
    """

    def __init__(self, path: Path, environment: dict[str, Any], *, resume: bool = False) -> None:
        self.path, self.records = path, path / RECORDS
        self.earlier: list[Record] = []
        self.torn = False
        self.added = 0
        self.fault = ""
        self._links: list[str] = []  # of the lines
        self._size, self._link, self._state = 0, "", (0, 0, 0)
        self._coming = self._environment = b""
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(self.records, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            self._lock()
            self._begin(environment, resume)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def done(self) -> set[str]:
        """The cases that have a record. A skipped case counts as missing."""
        return {record.case for record in self.earlier if record.status is not Status.SKIPPED}

    def append(self, record: Record) -> None:
        """Adds a record, and flushes it to the disk.

        Raises:
            RecordError: The record could not be written. The records before it are intact.
        """
        line = record.model_copy(update={"previous": self._link}).model_dump_json().encode()
        if len(line) > MOST_OF_LINE:
            raise RecordError(f"a record of {len(line)} bytes cannot be written; a line has at most {MOST_OF_LINE}")
        if not self._is_there():
            raise RecordError(f"{self.records} was removed or replaced during the run. {self._rescue(line)}")
        if change := self._change():
            raise RecordError(_changed(self.records, change))
        self._coming = line
        try:
            write_all(self._file, line + b"\n")
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            is_full = error.errno in _FULL
            remedy = "make room" if is_full else "make it writable, or name a copy of the folder with --out,"
            raise RecordError(
                f"cannot write to {self.records}: {error.strerror}. The records before it are intact; "
                f"{remedy} and continue with --resume"
            ) from None
        self._count_coming()

    def close(self) -> None:
        """Seals the records, closes the file and gives the lock back. `fault` says what was wrong."""
        if self._file < 0:
            return
        if self._coming and os.fstat(self._file).st_size == self._size + len(self._coming) + 1:
            self._count_coming()  # A Ctrl-C came between the writing of a line and its counting.
        if self._links:
            self._seal()
            if not self.fault and (change := self._change(at_end=True)):
                self.fault = _changed(self.records, change)
        os.close(self._file)
        self._file = -1

    def _seal(self) -> None:
        try:
            write_whole(self.path / SEAL, json.dumps({"last": self._link}).encode() + b"\n")
        except OSError as error:
            self.fault = (
                f"cannot write {self.path / SEAL}: {error.strerror}. All records are in {self.records}, and without a "
                "seal nobody sees if the last ones are removed. Make room for it, and run again with --resume to "
                "write it"
            )

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
            return  # This file system has no locks. A second run is then found by its lines.

    def _begin(self, environment: dict[str, Any], resume: bool) -> None:
        """Checks the earlier run, and only then writes: the environment of a first run, or the end of a torn line."""
        size = os.fstat(self._file).st_size
        if size and not resume:
            raise RequestError(
                f"{self.path} holds the records of another run; choose another folder with --out, "
                "or continue that run with --resume"
            )
        if resume and (size or os.path.lexists(self.path / SEAL)):
            self._check_environment(environment)
            self._read_earlier(environment["suite"]["digest"])
        try:
            if not self.earlier:
                (self.path / SEAL).unlink(missing_ok=True)
                write_whole(self.path / ENVIRONMENT, json.dumps(environment, indent=2).encode() + b"\n")
            self._environment = read_beside(self.path / ENVIRONMENT) or b""
            self._link = self._link or link_to(0, self._environment)
            if self.torn:
                os.ftruncate(self._file, self._size)
        except OSError as error:
            raise self._unwritable(error) from None

    def _count_coming(self) -> None:
        """Counts the record that was written."""
        self._follow(self._coming)
        self.added += 1
        self._coming, self._state = b"", _state(self._file)

    def _follow(self, line: bytes) -> None:
        """Takes a line as the last one."""
        self._size += len(line) + 1
        self._link = link_to(len(self._links) + 1, line)
        self._links.append(self._link)

    def _change(self, *, at_end: bool = False) -> str:
        """The change that another process made to the lines, as a clause, or an empty text.

        All lines are read again. The file's times would not show a change within a tick of the system's clock. Where
        that takes long they are believed until the end.
        """
        state = _state(self._file)
        if self._size > _READ_AGAIN and state == self._state and not at_end:
            return ""
        size, content = state[0], os.pread(self._file, self._size, 0)
        lines = content.split(b"\n")
        for number, link in enumerate(self._links, 1):
            if number == len(lines):  # it has no end
                return f"was cut in line {number}"
            if link_to(number, lines[number - 1]) != link:
                return f"was changed in line {number}"
        if size != self._size:
            return f"got {size - self._size} bytes after line {len(self._links)}"
        return ""

    def _is_there(self) -> bool:
        """Whether the name in the folder still stands for the file that is open."""
        held = os.fstat(self._file)
        with suppress(OSError):
            there = os.stat(self.records, follow_symlinks=False)
            return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
        return False

    def _rescue(self, line: bytes) -> str:
        """Writes the records beside a file that was taken away, or into a new folder if the folder went with it.

        Returns:
            How to go on, as a sentence.
        """
        kept, folder = self.path / _RESCUED, None
        try:
            before = os.pread(self._file, self._size, 0)
            if len(before) != self._size:
                return "Its records were removed too"
            with suppress(OSError):
                write_whole(kept, before + line + b"\n")
                return f"Its records are in {kept}: name that {RECORDS} and continue with --resume"
            folder = Path(tempfile.mkdtemp(prefix="longca-rescued-"))
            write_whole(folder / ENVIRONMENT, self._environment)
            write_whole(folder / RECORDS, before + line + b"\n")
        except OSError as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            return f"Its records cannot be written elsewhere either: {error.strerror}"
        again = f"--resume --out {shlex.quote(str(folder))}"
        return f"Its folder is gone or takes no files, so its records are in {folder}: continue with {again}"

    def _check_environment(self, environment: dict[str, Any]) -> None:
        file = self.path / ENVIRONMENT
        try:
            there = parse_json(read_beside(file) or b"null")
            if not isinstance(there, dict):
                raise ValueError("it is missing, or holds no environment")
        except ValueError as error:
            raise RequestError(f"cannot resume: {file}: {error}") from None
        now = json.loads(json.dumps(environment))
        differing = [said for key in _SAME for said in _differences(there.get(key), now.get(key), key)]
        if differing:
            more = f"; and {len(differing) - _NAMED} more differences" if len(differing) > _NAMED else ""
            said = "; ".join(differing[:_NAMED])
            raise RequestError(f"cannot resume {self.path}: {said}{more}. Start another run with --out")

    def _read_earlier(self, digest: str) -> None:
        held = read_lines(self.path)
        self.torn = held.torn
        if held.torn:
            held = replace(held, lines=held.lines[:-1], torn=False)
        self.earlier, notes = parsed(held)
        if notes:
            more = f"; and {len(notes) - 1} more complaints" if len(notes) > 1 else ""
            raise RequestError(f"cannot resume: {notes[0]}{more}. Start another run with --out")
        for number, record in enumerate(self.earlier, 1):
            if record.suite_digest != digest:
                raise RequestError(
                    held.named(number, "this record is from another suite, or from another version of it")
                )
        for line in held.lines:
            self._follow(line)


def _state(file: int) -> tuple[int, int, int]:
    """The size of an open file, and the times of its last changes."""
    held = os.fstat(file)
    return held.st_size, held.st_mtime_ns, held.st_ctime_ns


def _changed(file: Path, change: str) -> str:
    return f"{file} {change}: another process wrote to it. `longca report` says which lines are intact"


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
