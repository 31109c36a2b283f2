"""The files of document lengths that users bring: histograms (CSV or JSON) and lists of lengths.

A histogram:

- `.csv`: a header with the columns `lower`, `upper` and `weight` in any order, then one row a bin. Other columns are
  ignored.
- `.json`: a list of objects with those keys, or of [lower, upper, weight] triples.

A list of lengths:

- `.npy`: a NumPy array of one dim.
- `.idx`: the index of a Megatron dataset. Its documents are counted.
- `.json`, `.jsonl`, `.ndjson`: numbers, or objects with one of the keys `KEYS`. One value, or one a line.
- `.parquet`, and `.arrow` as Hugging Face's datasets writes it: the first column that is one of `KEYS`.
- any other file: numbers, separated by lines, spaces, commas or semicolons, with or without brackets. `#` begins a
  comment.

`FILE:NAME` names the column of a table, or the key of JSON Lines. A list under a name that is none of `KEYS` is one
document, such as its tokens.

Numbers that begin at 0 and ascend are bounds of documents (cu_seqlens). A bad file is refused with one message. The
message names the file, the line or row, and the allowed values.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.errors import LongCAError, MissingPackageError, RequestError
from longca.limits import MAX_DOCUMENT_BYTES, MAX_HISTOGRAM_BYTES, MAX_LIST_BYTES
from longca.masks.histogram import COLUMNS, MAX_LENGTH, Histogram

__all__ = [
    "JSON_LINES",
    "KEYS",
    "SUFFIXES",
    "LengthList",
    "holds_lengths",
    "named_column",
    "read_histogram",
    "read_lengths",
]

#: Keys of a JSON object that say how long its documents are.
KEYS = ("length", "lengths", "seq_length", "seq_lengths", "seqlens", "cu_seqlens", "input_ids")

JSON_LINES = (".jsonl", ".ndjson")

#: Tables of columns.
_TABLES = (".parquet", ".arrow")

_FORMS = {".npy": "a NumPy array", ".idx": "the documents of a Megatron index", ".json": "JSON"}
_FORMS |= dict.fromkeys(JSON_LINES, "JSON Lines") | {".parquet": "Parquet", ".arrow": "an Arrow stream"}

SUFFIXES = (".txt", ".csv", *_FORMS)

_SEPARATORS = re.compile(r"[\s,;\[\]()]+")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")
#: Megatron's magic number and version.
_INDEX_HEADER = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little")

#: Where a value is in a file, and the value.
_Values = Iterator[tuple[str, Any]]


class LengthList(NamedTuple):
    """The lengths in a file: int64 [documents], in the file's order. And the form of the file in words."""

    lengths: NDArray[np.int64]
    form: str


def read_histogram(path: str | Path) -> Histogram:
    """Reads a histogram from a `.csv` or `.json` file. The bounds are half-open: [lower, upper).

    Raises:
        RequestError: The file cannot be read, has more than MAX_HISTOGRAM_BYTES, or its content is not a histogram in
            the format described above.
    """
    path = Path(path)
    if (suffix := path.suffix.lower()) not in (".csv", ".json"):
        raise RequestError(f"a histogram is a .csv or .json file; got {str(path)!r}. Rename it")
    with _reading(path, "a histogram", f"write {', '.join(COLUMNS)} of each bin"):
        text = _text(path, MAX_HISTOGRAM_BYTES)
        rows = dict(_csv_rows(text) if suffix == ".csv" else _json_rows(text))
    return Histogram.from_rows(rows.values(), str(path), list(rows))


def _csv_rows(text: str) -> _Values:
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip().lower() for name in next(reader, [])]
    if missing := [name for name in COLUMNS if name not in header]:
        raise ValueError(f"line 1 names no {', '.join(missing)}")
    places = [header.index(name) for name in COLUMNS]
    for cells in filter(None, reader):
        fits = len(cells) == len(header)
        yield f"line {reader.line_num}", [cells[at] for at in places] if fits else [",".join(cells)]


def _json_rows(text: str) -> _Values:
    for index, item in enumerate(json.loads(text), 1):
        yield f"item {index}", [item[name] for name in COLUMNS] if isinstance(item, dict) else tuple(item)


def read_lengths(path: str | Path, most: int = MAX_LIST_BYTES) -> LengthList:
    """Reads a list of at most `most` lengths in one of the forms above.

    Raises:
        RequestError: The file cannot be read, is too large, or has more than `most` lengths or none. Or a part of it is
            no whole number in [1, 2³¹ − 1], or bounds descend.
    """
    path, column = named_column(path)
    form = _FORMS.get(path.suffix.lower(), "numbers in text")
    lengths: list[int] = []
    has_bounds, before = False, 0.0
    with _reading(path, form, f"write whole numbers, or objects with {', '.join(KEYS)}"):
        for place, value in _values(path, column):
            number = _number(value)
            if number == 0 and not (lengths or has_bounds):
                has_bounds = True
                continue
            length = number - before
            if has_bounds and length == 0:
                continue
            if not 1 <= length <= MAX_LENGTH or length % 1:
                said = repr(value) if math.isnan(number) else str(value)
                raise RequestError(
                    f"{path}, {place}: {said:.40}{f' after {before:.0f}' if has_bounds else ''} is not a document "
                    f"length; write whole numbers from 1 to {MAX_LENGTH}, or ascending bounds from 0"
                )
            before = number if has_bounds else 0.0
            lengths.append(int(length))
            if len(lengths) > most:
                raise RequestError(f"{path} has more than {most} lengths; give fewer")
    if not lengths:
        raise RequestError(f"{path} holds no lengths; write whole numbers")
    return LengthList(np.array(lengths, np.int64), f"{form}, from bounds (cu_seqlens)" if has_bounds else form)


def named_column(path: str | Path) -> tuple[Path, str | None]:
    """The file and the column of `FILE:COLUMN`, or the file and None."""
    file, _, column = str(path).rpartition(":")
    if column and Path(file).suffix.lower() in (*JSON_LINES, *_TABLES):
        return Path(file), column
    return Path(path), None


def holds_lengths(path: Path, field: str = "text") -> bool:
    """Whether a file is a list of lengths, and not a text, a corpus with texts under `field`, or a histogram.

    A file of lines is one if most of them are numbers, so that a list with a mistake is not taken for a text.

    Raises:
        RequestError: The file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in (".npy", ".idx", *_TABLES):
        return True
    if suffix in (".json", *JSON_LINES):
        try:
            value = next(_json(path))[1]
        except (StopIteration, OSError, ValueError, RecursionError):
            return False
        if isinstance(value, dict):
            return not isinstance(value.get(field), str) and any(key in value for key in KEYS)
        return isinstance(value, (int, float)) or (suffix != ".json" and isinstance(value, list))
    with _reading(path, "text", "check the file"):
        lines = _content(path, MAX_LIST_BYTES).decode("utf-8-sig", "replace").splitlines()
    parts = [found for line in lines if (found := _parts(line))]
    counts = [len(found) for found in parts if not any(math.isnan(_number(part)) for part in found)]
    is_table = suffix == ".csv" and len(parts) > 1 and max(counts, default=0) > 1
    return not is_table and 2 * len(counts) > len(parts)


def _values(path: Path, column: str | None) -> _Values:
    """The values in a file, each with its place. They need not be lengths."""
    suffix = path.suffix.lower()
    if suffix in (".json", *JSON_LINES):
        for place, value in _json(path):
            is_row = isinstance(value, list) and suffix != ".json"
            found = _of_object(value, place, column) if isinstance(value, dict) else value if is_row else [value]
            yield from ((place, each) for each in found)
    elif suffix in _TABLES:
        yield from _of_table(path, column)
    elif suffix in (".npy", ".idx"):
        content = _content(path, MAX_LIST_BYTES)
        array = _of_index(content) if suffix == ".idx" else np.load(io.BytesIO(content), allow_pickle=False)
        if array.ndim != 1:
            raise ValueError(f"it has the shape {list(array.shape)}, and needs one dim")
        yield from ((f"entry {index}", value) for index, value in enumerate(array.tolist()))
    else:
        for number, line in enumerate(_text(path, MAX_LIST_BYTES).splitlines(), 1):
            if _THOUSANDS.fullmatch(line.strip()):
                raise RequestError(
                    f"{path}, line {number}: {line.strip()[:40]!r} may be one number; write a space after each comma"
                )
            yield from ((f"line {number}", part) for part in _parts(line))


def _parts(line: str) -> list[str]:
    """The numbers and the words in a line of text, without its comment."""
    return [part for part in _SEPARATORS.split(line.partition("#")[0]) if part]


def _number(value: Any) -> float:
    """A number, or the number in a text. NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _json(path: Path) -> _Values:
    """The values in a JSON file or of JSON Lines, which are read line by line."""
    if path.suffix.lower() == ".json":
        value = json.loads(_text(path, MAX_LIST_BYTES))
        items = value if isinstance(value, list) else [value]
        yield from ((f"item {index}", item) for index, item in enumerate(items, 1))
        return
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_DOCUMENT_BYTES + 1), b""), 1):
            if line.strip():
                yield f"line {number}", json.loads(line.decode("utf-8-sig"))


def _of_object(value: dict[str, Any], place: str, column: str | None) -> Iterable[Any]:
    """The lengths in a JSON object or a row of a table."""
    key = next((key for key in ([column] if column else KEYS) if key in value), None)
    if key is None:
        raise ValueError(f"{place} has none of the keys, but {', '.join(value)[:200]}; name one as FILE:KEY")
    found = value[key] if isinstance(value[key], list) else [value[key]]
    if key == "input_ids" or (key not in KEYS and isinstance(value[key], list)):
        rows = found if found and isinstance(found[0], list) else [found]
        return filter(None, map(len, rows))
    if key == "cu_seqlens" and all(isinstance(bound, int) for bound in found):
        return [after - before for before, after in pairwise(found) if after != before]
    if 0 in found:
        raise ValueError(f"{place}: {key} is 0; leave out documents without tokens")
    return found


def _of_table(path: Path, column: str | None) -> _Values:
    """The lengths in a column of a Parquet or Arrow file, which is read a batch at a time."""
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingPackageError("pyarrow", f"reading {path}", "pip install 'longca-core[parquet]'") from None
    is_parquet = path.suffix.lower() == ".parquet"
    with path.open("rb") as file:
        table = pq.ParquetFile(file) if is_parquet else pa.ipc.open_stream(file)
        names = table.schema_arrow.names if is_parquet else table.schema.names
        key = next((key for key in ([column] if column else KEYS) if key in names), None)
        if key is None:
            raise RequestError(f"{path} has the columns {', '.join(names)[:200]}; name one, as in {path}:{names[-1]}")
        rows = count(1)
        for batch in table.iter_batches(columns=[key]) if is_parquet else table:
            values = batch.column(batch.schema.names.index(key))
            is_tokens = isinstance(values, pa.ListArray | pa.LargeListArray) and (key == "input_ids" or key not in KEYS)
            for value in (pc.list_value_length(values) if is_tokens else values).to_pylist():
                place = f"row {next(rows)}"
                found = filter(None, [value]) if is_tokens else _of_object({key: value}, place, key)
                yield from ((place, each) for each in found)


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


@contextmanager
def _reading(path: Path, form: str, remedy: str) -> Iterator[None]:
    """Says in one sentence why a file cannot be read, or is not of a form."""
    try:
        yield
    except LongCAError:
        raise
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}; check the path") from error
    # A library raises EOFError for a short file, and AttributeError is that of several arrays in one file.
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, RecursionError, csv.Error) as error:
        raise RequestError(f"{path} is not {form}: {error}; {remedy}") from error


def _text(path: Path, most: int) -> str:
    return _content(path, most).decode("utf-8-sig")  # spreadsheets begin their files with a byte-order mark


def _content(path: Path, most: int) -> bytes:
    if path.stat().st_size > most:
        raise RequestError(f"{path} has more than {most} bytes; give a smaller file")
    return path.read_bytes()
