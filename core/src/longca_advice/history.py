"""History: the evidence of this machine, one JSON line for each verified measurement and for each wrong kernel.

The file is `evidence.jsonl` in the user's data folder, or the path in LONGCA_HISTORY. `longca run` adds measurements.
Both `longca run` and `longca verify` add a line for a kernel that is wrong or suspect. The full records are in the
folder of each run. A line that cannot be read is left out and named.

The last verdict on a case counts. While it is `wrong` or `suspect`, all measurements of that version of the kernel's
code on that device are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, ValidationError

from longca.manifests.packages import sources_digest
from longca.masks import Mask
from longca_advice.evidence import Moment, Name, Row, Run, Version, said, to_line
from longca_advice.from_records import half_at_fault, half_of, row_of

__all__ = ["CodeVerdict", "History", "append", "code_version", "history", "history_path", "remember"]

#: Words before the digest of the sources in the version of code that is installed editable.
_SOURCES = " with sources "


class CodeVerdict(BaseModel):
    """The result of checking one version of a kernel's code in a case, or by the command that it names.

    The version is that of `code_version`. The run has the device. `finished` is in UTC, as ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Literal["wrong", "suspect", "ok"]
    case: Name
    kernel: Name
    version: Version
    finished: Moment
    run: Run


@dataclass(frozen=True, eq=False)
class History:
    """The content of the history file. An instance equals only itself, so that models can be cached by it.

    The rows are the measurements, oldest first. The notes are about lines that cannot be read and measurements that are
    left out. `wrong` has the last verdict on each kernel, device and version of code that is wrong or suspect.
    """

    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    wrong: tuple[CodeVerdict, ...] = ()

    def verdict_on(self, kernel: str, device: str, version: str) -> CodeVerdict | None:
        """The verdict against a version of a kernel's code on a device, or None."""
        found = (one for one in self.wrong if (one.kernel, one.run.device) == (kernel, device))
        return next((one for one in found if _is_same_code(version, one.version)), None)


def history_path() -> Path:
    """The path of this machine's evidence."""
    named = os.environ.get("LONGCA_HISTORY")
    return Path(named) if named else platformdirs.user_data_path("longca") / "evidence.jsonl"


def code_version(distribution: str, version: str) -> str:
    """The version of a distribution's code: its number, and the digest of its sources if it is installed editable."""
    digest = sources_digest(distribution)
    return f"{distribution} {version}" + (f"{_SOURCES}{digest}" if digest else "")


def remember(record: Mapping[str, Any], run: Run, mask: Mask | None = None) -> None:
    """Adds the record of a case on one device, if its status says something about the kernel.

    A pair that is wrong says something about one of its kernels only if the results of its forward alone are wrong, or
    those of its backward alone.
    """
    if record.get("sinks"):
        return  # they take a part of the time
    half, status = None, record["status"]
    if status == "wrong" and "+" in record["kernel"]:
        half = half_at_fault(found["tensor"] for found in record["findings"] if not found["passed"])
        if half is None:
            return
    version = code_version(half_of(record, "distribution", half), half_of(record, "distribution_version", half))
    with suppress(ValueError):  # a measurement that cannot be true stays in the records alone
        if status == "ok":
            append(row_of(record, run, mask=mask).model_copy(update={"version": version}))
        elif status in ("wrong", "suspect"):
            about = {"case": record["case"], "kernel": half_of(record, "kernel", half), "finished": record["finished"]}
            append(CodeVerdict(status=status, version=version, run=run, **about))


def append(entry: Row | CodeVerdict) -> bool:
    """Adds a line, and returns whether it was written.

    A file that cannot be written to is no error: the run's own records are elsewhere.
    """
    path, line = history_path(), to_line(entry).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            is_torn = file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            return file.write(b"\n" * is_torn + line) == len(line) + is_torn
    except OSError:
        return False


def history() -> History:
    """This machine's measurements. The file is read again only when it has changed."""
    path = history_path()
    try:
        status = path.stat()
    except OSError:
        return _NOTHING
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


_NOTHING = History()


@lru_cache(maxsize=1)
def _read(path: Path, *_changed: int) -> History:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        return History(notes=(f"{path}: {error.strerror}",))
    rows: dict[tuple[str, ...], Row] = {}
    verdicts: dict[tuple[str, ...], CodeVerdict] = {}
    notes: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = _entry(line)
        except ValueError as error:
            notes.append(f"{path}, line {number}: {error}. Remove the file to begin anew")
            continue
        if entry is None:
            continue
        case = (entry.kernel, entry.run.device, entry.case.partition(":")[0] or f"line {number}")
        if isinstance(entry, CodeVerdict):
            verdicts[*case, entry.version] = entry
        else:
            verdicts.pop((*case, entry.version), None)
            earlier = rows.pop((*case, entry.direction), entry)
            rows[*case, entry.direction] = earlier if entry.busy and not earlier.busy else entry
    # Times of code that was wrong stay out after it was mended.
    wrong = {(one.kernel, one.run.device, one.version): one for one in verdicts.values() if one.status != "ok"}
    found = History(wrong=tuple(one for one in wrong.values() if _is_current(one.version)))
    about = [(row.kernel, row.run.device, row.version) for row in rows.values()]
    against = [wrong.get(each) or found.verdict_on(*each) for each in about]
    kept = tuple(row for row, verdict in zip(rows.values(), against, strict=True) if verdict is None)
    notes += [f"{path}: {_left_out(one, against.count(one))}" for one in found.wrong if one in against]
    return History(kept, tuple(notes), found.wrong)


def _entry(line: bytes) -> Row | CodeVerdict | None:
    """The measurement or the verdict in a line, or None for an empty line.

    Raises:
        ValueError: The line is neither.
    """
    if not line.strip():
        return None
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    for name in ("previous", "digest"):  # earlier versions wrote a chain of digests
        value.pop(name, None)
    try:
        return (CodeVerdict if "status" in value else Row).model_validate(value)
    except ValidationError as error:
        raise ValueError(said(error, "row")) from None


def _is_same_code(version: str, other: str) -> bool:
    """Whether two versions may be of the same code. An empty version may be any. Digests count if both have one."""
    (number, _, digest), (other_number, _, other_digest) = (text.partition(_SOURCES) for text in (version, other))
    return not version or (number == other_number and (not digest or not other_digest or digest == other_digest))


def _is_current(version: str) -> bool:
    """Whether a version's sources were not edited since."""
    number, _, digest = version.partition(_SOURCES)
    return not digest or digest == (sources_digest(number.partition(" ")[0]) or digest)


def _left_out(verdict: CodeVerdict, count: int) -> str:
    return (
        f"{count} measurements of {verdict.kernel}, because it was found {verdict.status} on {verdict.run.device} "
        f"at {verdict.finished or 'an unknown time'}, in case {verdict.case} of {verdict.version}. "
        f"`longca verify --kernel {verdict.kernel}` checks it. Once it is mended, measure that case again"
    )
