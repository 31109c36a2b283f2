"""Records as a flat table, one row a record, for spreadsheets and data frames: CSV and Parquet.

The columns are the record's own fields, whatever they are: numbers and text as they are, anything nested as JSON.
Beside `samples` stand their count, median, and the 10th and 90th percentile.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import MissingPackageError

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = ["flat_row", "write_csv", "write_parquet"]

_OF_SAMPLES = ("samples_count", "samples_median", "samples_p10", "samples_p90")


def flat_row(record: Record) -> dict[str, Any]:
    """A record without nesting; seconds where the record has seconds."""
    row: dict[str, Any] = {}
    for name, value in record.model_dump(mode="json").items():
        if name == "samples":
            ordered = sorted(value)
            figures = (len(ordered), *(_quantile(ordered, share) for share in (0.5, 0.1, 0.9)))
            row |= dict(zip(_OF_SAMPLES, figures, strict=True))
        row[name] = json.dumps(value) if isinstance(value, list | dict) else value
    return row


def write_csv(records: Sequence[Record], path: Path) -> Path:
    """Writes CSV with a header; what is not known is empty.

    Args:
        records: One or more.
        path: Where to.

    Returns:
        The path.
    """
    table = [flat_row(record) for record in records]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return path


def write_parquet(records: Sequence[Record], path: Path) -> Path:
    """Writes Parquet, with the same columns as CSV; what is not known is null.

    Args:
        records: One or more.
        path: Where to.

    Returns:
        The path.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        install = "pip install 'longca-core[parquet]'"
        raise MissingPackageError("pyarrow", "writing Parquet", install) from None
    table = [flat_row(record) for record in records]
    types = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    fields = [(name, types[_type_of([row[name] for row in table], name, type(records[0]))]) for name in table[0]]
    parquet.write_table(pyarrow.Table.from_pylist(table, schema=pyarrow.schema(fields)), path)
    return path


def _type_of(values: Sequence[Any], name: str, model: type[Record]) -> type:
    """A column's type: that of its values, or what the record's field says where none is known."""
    found = {type(value) for value in values if value is not None}
    if found:
        return found.pop() if len(found) == 1 else float
    hint = str(model.model_fields[name].annotation) if name in model.model_fields else "float"
    return next((kind for kind in (int, float, bool) if kind.__name__ in hint), str)


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Linear between the two nearest samples."""
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
