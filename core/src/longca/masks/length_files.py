"""The files of document lengths that users bring: histograms (CSV or JSON) and plain lists of lengths.

- `.csv`: a header with the columns `lower`, `upper` and `weight` in any order, then one row a bin. Other columns are
  ignored.
- `.json`: a list of objects with those keys, or of [lower, upper, weight] triples.
- `.txt`: one length a line.

A bad file is refused with one message. The message names the file, the line or row, and the allowed values.
"""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longca.errors import RequestError
from longca.limits import MAX_HISTOGRAM_BYTES, MAX_LIST_BYTES
from longca.masks.histogram import COLUMNS, MAX_LENGTH, Histogram
from longca.regular_files import read_regular

__all__ = ["holds_lengths", "read_histogram", "read_lengths"]

_INTEGER = re.compile(r"[+-]?[0-9]+")


def read_histogram(path: str | Path) -> Histogram:
    """Reads a histogram from a `.csv` or `.json` file. The bounds are half-open: [lower, upper).

    Raises:
        RequestError: The file cannot be read, has more than MAX_HISTOGRAM_BYTES, or its content is not a histogram in
            the format described above.
    """
    path = Path(path)
    text = _text(path, MAX_HISTOGRAM_BYTES)
    if path.suffix.lower() == ".csv":
        rows, places = _csv_rows(text, str(path))
    elif path.suffix.lower() == ".json":
        rows, places = _json_rows(text, str(path))
    else:
        raise RequestError(f"a histogram is a .csv or .json file; got {str(path)!r}. Rename it")
    return Histogram.from_rows(rows, str(path), places)


def read_lengths(path: str | Path, most: int = MAX_LIST_BYTES) -> NDArray[np.int64]:
    """Reads the lengths in a text file: int64 [documents], in the file's order. Blank lines are skipped.

    Args:
        path: The file.
        most: The most lengths. Reading ends after them.

    Raises:
        RequestError: The file cannot be read, has more than MAX_LIST_BYTES or `most` lengths, has no length, or has a
            line that is not one whole number in [1, 2³¹ − 1].
    """
    lengths = array("q")
    for line, content in enumerate(io.StringIO(_text(Path(path), MAX_LIST_BYTES), newline=None), 1):
        if not content.strip():
            continue
        number = _number(content)
        if not isinstance(number, int) or not 1 <= number <= MAX_LENGTH:
            shown = content.strip()[:40]
            corpus = "" if isinstance(number, int) else "; longca make-lengths makes a histogram of a corpus"
            raise RequestError(
                f"{path}, line {line}: {shown!r} is not a document length; write one whole number from 1 to "
                f"{MAX_LENGTH} a line{corpus}"
            )
        lengths.append(number)
        if len(lengths) > most:
            raise RequestError(f"{path} has more than {most} lengths; give fewer")
    if not lengths:
        raise RequestError(f"{path} holds no lengths; write one whole number a line")
    return np.frombuffer(lengths, np.int64)


def holds_lengths(path: Path) -> bool:
    """Whether a file is a list of lengths and not a text: every non-blank line is an integer.

    Raises:
        RequestError: The file cannot be read.
    """
    found = False
    lines = io.TextIOWrapper(io.BytesIO(_content(path, MAX_LIST_BYTES)), "utf-8-sig", "replace")
    for line in filter(None, map(str.strip, lines)):
        if not _INTEGER.fullmatch(line):
            return False
        found = True
    return found


def _text(path: Path, most: int) -> str:
    content = _content(path, most)
    try:
        # utf-8-sig: spreadsheets begin their CSV files with a byte-order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is not UTF-8 text (byte {error.start} does not decode); save it as UTF-8"
        ) from error


def _content(path: Path, most: int) -> bytes:
    try:
        return read_regular(path, most, follow=True)
    except (OSError, ValueError) as error:  # ValueError: the path has a character that no path can have
        said = getattr(error, "strerror", error)
        raise RequestError(f"{path} cannot be read: {said}; check the path") from error


def _csv_rows(text: str, source: str) -> tuple[list[list[object]], list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    rows: list[list[object]] = []
    places: list[str] = []
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        if missing := [name for name in COLUMNS if name not in header]:
            raise RequestError(
                f"{source}, line 1: no column {', '.join(missing)}; the first line must name "
                f"{', '.join(COLUMNS)}, separated by commas. It reads {', '.join(header)[:80] or 'nothing'!r}"
            )
        columns = [header.index(name) for name in COLUMNS]
        for cells in reader:
            if not cells:
                continue
            place = f"line {reader.line_num}"
            if len(cells) != len(header):
                raise RequestError(f"{source}, {place}: {len(cells)} cells where the header has {len(header)}")
            rows.append([_number(cells[column]) for column in columns])
            places.append(place)
    except csv.Error as error:
        raise RequestError(f"{source}, line {reader.line_num}: not CSV: {error}") from error
    return rows, places


def _json_rows(text: str, source: str) -> tuple[list[list[object]], list[str]]:
    shape = f"a list of objects with {', '.join(COLUMNS)}, or of [{', '.join(COLUMNS)}]"
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{source} is not JSON: {error}; write {shape}") from error
    if not isinstance(items, list):
        raise RequestError(f"{source} holds a JSON {type(items).__name__}; write {shape}")
    rows: list[list[object]] = []
    for index, item in enumerate(items, 1):
        if isinstance(item, dict):
            if missing := [name for name in COLUMNS if name not in item]:
                raise RequestError(f"{source}, item {index}: no {', '.join(missing)}; write {shape}")
            item = [item[name] for name in COLUMNS]
        if not isinstance(item, list):
            raise RequestError(f"{source}, item {index}: a JSON {type(item).__name__}; write {shape}")
        rows.append(item)
    return rows, [f"item {index}" for index in range(1, len(rows) + 1)]


def _number(text: str) -> int | float | str:
    """The number in a cell. If the cell has no number, its text, so that the message can show it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
