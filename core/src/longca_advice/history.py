"""History: the evidence of this machine. `longca run` adds a line for each verified measurement and for each case in
which a kernel was wrong or suspect.

The file is `evidence.jsonl` in the user's data folder, or the path in LONGCA_HISTORY. The full records are in each
run's own folder. Lines are a chain of digests, as those of records are, and each has a digest of itself. A measurement
that was changed or inserted or that has no link is left out. Nothing says whether lines are missing at the end of the
file. `longca verify` adds a line for each kernel that it finds wrong.

All measurements of a kernel on a device are left out once that version of the kernel was found wrong there. They are
left out for a suspect case too, until the same case is `ok`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, ValidationError

from longca.manifests.devices import cpu_device
from longca.masks import Mask
from longca.regular_files import read_regular
from longca_advice.devices import cpu_reaches, evidence_name
from longca_advice.evidence import Moment, Name, Row, Run, Version, said, to_line
from longca_advice.from_records import half_at_fault, half_of, origin_of, row_of
from longca_advice.record_lines import MOST_WRONG, RecordLines, append_linked, parse_linked

__all__ = ["Doubt", "History", "append", "history", "history_path", "remember"]

#: Bytes of the file that is read, and of a line.
_MOST_OF_FILE, _MOST_OF_LINE = 2**26, 2**20
#: Lines of the file. Those of measurements are some hundred bytes long.
_MOST_LINES = 2**18
#: Clocks of two machines that share the file may differ by as much.
_CLOCKS = timedelta(days=1)
_ANEW = "Remove the file to begin anew"


class Doubt(BaseModel):
    """A case in which a kernel was not verified.

    Attributes:
        status: `wrong` or `suspect`.
        case: Hash of the measured problem and its device.
        kernel: The kernel.
        version: Distribution of the kernel and its version.
        finished: Time of the record, in UTC, as ISO 8601.
        run: The run that the record comes from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Literal["wrong", "suspect"]
    case: Name
    kernel: Name
    version: Version
    finished: Moment
    run: Run

    def covers(self, row: Row) -> bool:
        """Whether a row of this kernel and device is of this version too. A row without a version may be of any."""
        return row.version in ("", self.version)


@dataclass(frozen=True, eq=False)
class History:
    """The content of the history file. An instance equals only itself, so that models can be cached by it.

    Attributes:
        rows: The measurements, oldest first. A later measurement of a case replaces the earlier one.
        wrong: Sentences about the invalid lines and the doubted kernels that are left out.
        doubted: The name, the device and the version of each doubted kernel.
    """

    rows: tuple[Row, ...]
    wrong: tuple[str, ...]
    doubted: frozenset[tuple[str, str, str]] = frozenset()


_NOTHING = History((), ())


def history_path() -> Path:
    """The path of this machine's evidence."""
    named = os.environ.get("LONGCA_HISTORY")
    return Path(named) if named else platformdirs.user_data_path("longca") / "evidence.jsonl"


def remember(record: Mapping[str, Any], run: Run, mask: Mask | None = None) -> None:
    """Adds the record of a case on one device, if its status says something about the kernel.

    A stream is no measurement of one mask, so it is noted only where it was wrong. A pair that is wrong says something
    about one of its kernels only if the results of its forward alone are wrong, or those of its backward alone.

    Args:
        record: The record.
        run: The run that the record comes from.
        mask: The record's mask, or None to draw it again.
    """
    is_stream = record.get("stream") is not None
    with suppress(ValueError):  # a measurement that cannot be true stays in the records alone
        if record["status"] == "ok" and not is_stream:
            append(row_of(record, run, mask=mask))
        elif record["status"] == "wrong" or (record["status"] == "suspect" and not is_stream):
            half = None
            if "+" in record["kernel"] and record["status"] == "wrong":
                half = half_at_fault(found["tensor"] for found in record["findings"] if not found["passed"])
                if half is None:
                    return
            kernel, about = half_of(record, "kernel", half), origin_of(record, half)
            append(Doubt(status=record["status"], case=record["case"], kernel=kernel, run=run, **about))


def append(entry: Row | Doubt) -> bool:
    """Adds a line, and returns whether it was written.

    A file that cannot be written to is no error: the run's own records are elsewhere.
    """
    try:
        append_linked(history_path(), to_line(entry).encode(), _MOST_OF_FILE)
    except OSError:
        return False
    return True


def history() -> History:
    """This machine's measurements. The file is read again only when it has changed."""
    path = history_path()
    try:
        status = path.stat()
    except OSError:
        return _NOTHING
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=1)
def _read(path: Path, *_changed: int) -> History:
    try:
        content = read_regular(path, _MOST_OF_FILE, follow=True)
    except OSError as error:
        return History((), (f"{path}: {error.strerror}",))
    rows: dict[tuple[str, ...], Row] = {}
    doubts: dict[tuple[str, ...], Doubt] = {}
    if (count := content.count(b"\n")) > _MOST_LINES:
        return History((), (f"{path}: it has {count} lines, and at most {_MOST_LINES} are read. {_ANEW}",))
    entries, wrong = _entries(path, content)
    for number, entry in entries.items():
        case = (entry.run.device, entry.case or f"line {number}", entry.kernel)
        if isinstance(entry, Doubt):
            doubts[*case, entry.version] = entry
            continue
        if (found := doubts.get((*case, entry.version))) and found.status == "suspect":
            del doubts[*case, entry.version]
        rows.pop((*case, entry.direction), None)
        rows[*case, entry.direction] = entry
    kept, left_out = _without_doubted(rows.values(), doubts.values())
    doubted = frozenset((doubt.kernel, doubt.run.device, doubt.version) for doubt in doubts.values())
    return History(kept, (*wrong, *(f"{path}: {text}" for text in left_out)), doubted)


def _entries(path: Path, content: bytes) -> tuple[dict[int, Row | Doubt], list[str]]:
    """The entries by the number of their line, and a sentence about each line that is wrong or missing.

    A measurement whose line contradicts the chain is left out. A doubt counts all the same.
    """
    *lines, rest = content.split(b"\n")
    held = RecordLines(path, (*lines, rest) if rest else tuple(lines), bool(rest), None, None)
    entries: dict[int, Row | Doubt] = {}
    links: dict[int, str | None] = {}
    wrong: list[str] = []
    last = max((number for number, line in enumerate(held.lines, 1) if line.strip()), default=0)
    for number, line in enumerate(held.lines, 1):
        try:
            entry, link = _entry(line, is_last=number == last)
        except ValueError as error:
            wrong.append(f"{held.named(number, error)}. {_ANEW}")
            continue
        if entry is not None:
            entries[number], links[number] = entry, link
    for out, note in held.breaks(links):
        wrong.append(f"{note}. {_ANEW}")
        if out is not None and isinstance(entries[out], Row):
            del entries[out]
    if (more := len(wrong) - MOST_WRONG) > 0:
        wrong[MOST_WRONG:] = [f"{path}: {more} more lines are wrong. {_ANEW}"]
    return entries, wrong


def _entry(line: bytes, *, is_last: bool) -> tuple[Row | Doubt | None, str | None]:
    """The measurement or the doubt in a line, or None for an empty line, and the link to the line before.

    Earlier versions wrote no digest. No line speaks for the last one then.

    Raises:
        ValueError: The line is no entry.
    """
    if len(line) > _MOST_OF_LINE:
        raise ValueError(f"it has {len(line)} bytes, and a line has at most {_MOST_OF_LINE}")
    if not line.strip():
        return None, None
    line, link, is_right = parse_linked(line)
    try:
        # No text in JSON has unescaped quotes, so that only a key reads so, and a row has no such key.
        if b'"status"' in line:
            return Doubt.model_validate_json(line), link
        row = Row.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(said(error, "row")) from None
    if link is None:
        raise ValueError("it has no link to the line before it, as every line of LongCA has")
    here = evidence_name(cpu_device())
    if row.run.capability is None and row.run.device == here and row.tflops > cpu_reaches(row.dtype):
        raise ValueError(f"{row.seconds} seconds would be {row.tflops:.0f} TFLOP/s, more than {here} can do here")
    if row.finished and datetime.fromisoformat(row.finished) > datetime.now(UTC) + _CLOCKS:
        raise ValueError(f"it was measured at {row.finished}, which has not come yet")
    if is_right is False:
        raise ValueError("it was changed after it was written")
    if is_last and is_right is None:
        raise ValueError("it has no digest of itself, and no line after it has one")
    return row, link


def _without_doubted(rows: Iterable[Row], doubts: Iterable[Doubt]) -> tuple[tuple[Row, ...], Iterator[str]]:
    """The rows of kernels that are not doubted, and a sentence about each kernel that is."""
    doubted: dict[tuple[str, str], list[Doubt]] = {}
    for doubt in doubts:
        doubted.setdefault((doubt.kernel, doubt.run.device), []).append(doubt)
    left_out: dict[tuple[str, str, str], tuple[Doubt, int]] = {}
    kept: list[Row] = []
    for row in rows:
        found = [doubt for doubt in doubted.get((row.kernel, row.run.device), ()) if doubt.covers(row)]
        if not found:
            kept.append(row)
            continue
        about = found[-1]
        key = (about.kernel, about.run.device, about.version)
        left_out[key] = about, left_out.get(key, (about, 0))[1] + 1
    return tuple(kept), (_told(doubt, count) for doubt, count in left_out.values())


def _told(doubt: Doubt, count: int) -> str:
    return (
        f"{count} measurements of {doubt.kernel}, because it was found {doubt.status} on {doubt.run.device} at "
        f"{doubt.finished or 'an unknown time'}, in case {doubt.case} of {doubt.version}. "
        f"`longca verify --kernel {doubt.kernel}` checks it. Install another version of it, or remove the file if you "
        "have mended this one"
    )
