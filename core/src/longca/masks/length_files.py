"""The files of document lengths that users bring: histograms (CSV or JSON) and lists of lengths.

A histogram:

- `.csv`: a header with the columns `lower`, `upper` and `weight` in any order, then one row a bin. Other columns are
  ignored.
- `.json`: a list of objects with those keys, or of [lower, upper, weight] triples.

A list of lengths:

- `.npy`: a NumPy array of one dim.
- `.idx`: the index of a Megatron dataset. Its documents are counted.
- `.json`, `.jsonl`, `.ndjson`: numbers, or objects with one of the keys `KEYS`. One value, or one a line.
- any other file: numbers, separated by lines, spaces, commas or semicolons, with or without brackets. `#` begins a
  comment.

Numbers that begin at 0 and ascend are bounds of documents (cu_seqlens). A bad file is refused with one message. The
message names the file, the line or row, and the allowed values.
"""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.errors import RequestError
from longca.limits import MAX_DOCUMENT_BYTES, MAX_HISTOGRAM_BYTES, MAX_LIST_BYTES
from longca.masks.histogram import COLUMNS, MAX_LENGTH, Histogram

__all__ = ["JSON_LINES", "KEYS", "SUFFIXES", "LengthList", "holds_lengths", "read_histogram", "read_lengths"]

#: Keys of a JSON object that say how long its documents are.
KEYS = ("length", "lengths", "seq_length", "seq_lengths", "seqlens", "cu_seqlens", "input_ids")

JSON_LINES = (".jsonl", ".ndjson")

_FORMS = {".npy": "a NumPy array", ".idx": "the documents of a Megatron index", ".json": "JSON"}
_FORMS |= dict.fromkeys(JSON_LINES, "JSON Lines")

SUFFIXES = (".txt", ".csv", *_FORMS)

_SEPARATORS = re.compile(r"[\s,;\[\]()]+")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
#: Megatron's magic number and version.
_INDEX_HEADER = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little")

#: Where a number is in a file, and the number. What is no number is there as it is.
_Entries = Iterator[tuple[str, Any]]


class LengthList(NamedTuple):
    """The lengths in a file.

    Attributes:
        lengths: The lengths in the file's order: int64 [documents].
        form: The form of the file in words, such as `one a line`.
    """

    lengths: NDArray[np.int64]
    form: str


def read_histogram(path: str | Path) -> Histogram:
    """Reads a histogram from a `.csv` or `.json` file. The bounds are half-open: [lower, upper).

    Raises:
        RequestError: The file cannot be read, has more than MAX_HISTOGRAM_BYTES, or its content is not a histogram in
            the format described above.
    """
    path = Path(path)
    text, suffix = _text(path, MAX_HISTOGRAM_BYTES), path.suffix.lower()
    if suffix not in (".csv", ".json"):
        raise RequestError(f"a histogram is a .csv or .json file; got {str(path)!r}. Rename it")
    try:
        rows = _csv_rows(text) if suffix == ".csv" else _json_rows(text)
    except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
        shape = "a header and rows" if suffix == ".csv" else "a list of objects"
        raise RequestError(f"{path} is no histogram: {error}; write {shape} with {', '.join(COLUMNS)}") from error
    return Histogram.from_rows(rows.values(), str(path), list(rows))


def _csv_rows(text: str) -> dict[str, Sequence[Any]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip().lower() for name in next(reader, [])]
    if missing := [name for name in COLUMNS if name not in header]:
        raise ValueError(f"line 1 names no {', '.join(missing)}")
    places = [header.index(name) for name in COLUMNS]
    return {
        f"line {reader.line_num}": [cells[at] for at in places] if len(cells) == len(header) else [",".join(cells)]
        for cells in reader
        if cells
    }


def _json_rows(text: str) -> dict[str, Sequence[Any]]:
    return {
        f"item {index}": [item[name] for name in COLUMNS] if isinstance(item, dict) else tuple(item)
        for index, item in enumerate(json.loads(text), 1)
    }


def read_lengths(path: str | Path, most: int = MAX_LIST_BYTES) -> LengthList:
    """Reads a list of lengths in one of the forms above.

    Args:
        path: The file.
        most: The most lengths. Reading ends after them.

    Raises:
        RequestError: The file cannot be read, is too large, or has more than `most` lengths or none. Or a part of it is
            no whole number in [1, 2³¹ − 1], or bounds descend.
    """
    path = Path(path)
    entries = list(islice(_entries(path), most + 2))
    has_bounds = bool(entries) and entries[0][1] in (0, "0")
    lengths, before = array("q"), 0
    for place, value in entries[1:] if has_bounds else entries:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        length = value - before if is_number and has_bounds else value
        if has_bounds and is_number and length == 0:
            continue
        if not is_number or not 1 <= length <= MAX_LENGTH or length != int(length):
            raise RequestError(
                f"{path}, {place}: {value!r:.40}{f' after {before}' if has_bounds else ''} is not a document length; "
                f"write whole numbers from 1 to {MAX_LENGTH}, or ascending bounds from 0"
            )
        before = int(value)
        lengths.append(int(length))
    if len(lengths) > most:
        raise RequestError(f"{path} has more than {most} lengths; give fewer")
    if not lengths:
        raise RequestError(f"{path} holds no lengths; write whole numbers")
    places = len({place for place, _ in entries})
    lines = "one a line" if places >= len(lengths) else "on one line" if places == 1 else f"on {places} lines"
    form = _FORMS.get(path.suffix.lower(), lines)
    return LengthList(np.frombuffer(lengths, np.int64), f"{form}, from bounds (cu_seqlens)" if has_bounds else form)


def holds_lengths(path: Path, field: str = "text") -> bool:
    """Whether a file is a list of lengths, and not a text, a corpus in JSON Lines or a histogram.

    A file of lines is one if most of them are numbers, so that a list with a mistake is not taken for a text.

    Args:
        path: The file.
        field: The key of a document's text in a corpus.

    Raises:
        RequestError: The file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in (".npy", ".idx"):
        return True
    if suffix in (".json", *JSON_LINES):
        try:
            value = next(iter(_json(path)))[1]
        except (StopIteration, RequestError):
            return False
        if isinstance(value, dict):
            return not isinstance(value.get(field), str) and any(key in value for key in KEYS)
        return isinstance(value, (int, float)) or (suffix != ".json" and isinstance(value, list))
    content = _content(path, MAX_LIST_BYTES).decode("utf-8-sig", "replace")
    lines = [numbers for line in io.StringIO(content, newline=None) if (numbers := _numbers(line))]
    counts = [len(numbers) for numbers in lines if not any(isinstance(number, str) for number in numbers)]
    if suffix == ".csv" and len(lines) > 1 and max(counts, default=0) > 1:
        return False  # a table
    return 2 * len(counts) > len(lines)


def _entries(path: Path) -> _Entries:
    suffix = path.suffix.lower()
    if suffix in (".json", *JSON_LINES):
        for place, value in _json(path):
            lengths = _of_object(value, f"{path}, {place}") if isinstance(value, dict) else [value]
            if isinstance(value, list) and suffix != ".json":
                lengths = value
            yield from ((place, length) for length in lengths)
    elif suffix in (".npy", ".idx"):
        content, named = _content(path, MAX_LIST_BYTES), "document" if suffix == ".idx" else "entry"
        try:
            values = _of_index(content) if suffix == ".idx" else np.load(io.BytesIO(content), allow_pickle=False)
            if values.ndim != 1:
                raise ValueError(f"it has the shape {list(values.shape)}")
        except (ValueError, EOFError, AttributeError) as error:  # AttributeError: several arrays
            raise RequestError(f"{path} is not {_FORMS[suffix]} of one dim: {error}; save the lengths again") from error
        yield from ((f"{named} {index}", value) for index, value in enumerate(values.tolist()))
    else:
        for number, line in enumerate(io.StringIO(_text(path, MAX_LIST_BYTES), newline=None), 1):
            if _THOUSANDS.fullmatch(line.strip()):
                raise RequestError(
                    f"{path}, line {number}: {line.strip()[:40]!r} may be one number; write a space after each comma"
                )
            yield from ((f"line {number}", found) for found in _numbers(line))


def _numbers(line: str) -> list[int | float | str]:
    """The numbers in a line of text, and its words."""
    return [_number(part) for part in _SEPARATORS.split(line.partition("#")[0]) if part]


def _number(part: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            if isfinite(number := kind(part)):
                return number
    return part


def _json(path: Path) -> _Entries:
    """The values in a JSON file or of JSON Lines, each with its place."""
    try:
        if path.suffix.lower() == ".json":
            value = json.loads(_text(path, MAX_LIST_BYTES))
            for index, item in enumerate(value if isinstance(value, list) else [value], 1):
                yield f"item {index}", item
            return
        with path.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_DOCUMENT_BYTES + 1), b""), 1):
                if line.strip():
                    yield f"line {number}", json.loads(line.decode("utf-8-sig"))
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is not JSON: {error}; write numbers, or objects with {', '.join(KEYS)}") from error


def _of_object(value: dict[str, Any], place: str) -> Iterable[Any]:
    """The lengths in a JSON object."""
    key = next((key for key in KEYS if key in value), None)
    if key is None:
        raise RequestError(f"{place}: no {', '.join(KEYS)} among its keys; name one of them")
    found = value[key] if isinstance(value[key], list) else [value[key]]
    if key == "input_ids":
        rows = found if found and isinstance(found[0], list) else [found]
        return filter(None, map(len, rows))
    if key == "cu_seqlens" and all(isinstance(bound, int) for bound in found):
        return [after - before for before, after in pairwise(found) if after != before]
    if 0 in found:
        raise RequestError(f"{place}: {key} is 0; leave out documents without tokens")
    return found


def _of_index(content: bytes) -> NDArray[np.int64]:
    """The lengths of the documents of a Megatron index, each the sum of the lengths of its sequences.

    Source: megatron-core 0.16.1, core/datasets/indexed_dataset.py (`_IndexWriter`).
    """
    if not content.startswith(_INDEX_HEADER):
        raise ValueError("its header is another one")
    at = len(_INDEX_HEADER) + 1
    sequences, bounds = (int(count) for count in np.frombuffer(content, "<u8", 2, at))
    lengths = np.frombuffer(content, "<i4", sequences, at + 16)
    ends = np.frombuffer(content, "<i8", bounds, at + 16 + 12 * sequences)
    found = np.diff(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[ends])
    return found[found > 0]


def _text(path: Path, most: int) -> str:
    try:
        return _content(path, most).decode("utf-8-sig")  # spreadsheets begin their files with a byte-order mark
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text: {error}; save it as UTF-8") from error


def _content(path: Path, most: int) -> bytes:
    try:
        if path.stat().st_size > most:
            raise RequestError(f"{path} has more than {most} bytes; give a smaller file")
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}; check the path") from error
