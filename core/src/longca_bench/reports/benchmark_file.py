"""Files of benchmarks: a JSON file with rows, or a CSV file, as a data frame."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError
from longca.regular_files import read_regular

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["SUFFIXES", "read_benchmark"]

SUFFIXES = (".json", ".csv")
#: Bytes that a file may have.
_MOST = 2**29


def read_benchmark(path: Path, under: str) -> tuple[DataFrame, dict[str, Any]]:
    """The rows of a file, with nested objects as dotted columns, and the rest of the file.

    Args:
        path: A CSV file, or a JSON file: a list of objects, or an object that has its rows under a name.
        under: The name. Rows are a list of objects, an object of objects, whose names become the column `name`, or any
            other object as a single row. An empty name stands for the whole file.

    Raises:
        RequestError: The file cannot be read, or there are no rows in it.
    """
    from pandas import json_normalize, read_csv

    try:
        content = read_regular(path, _MOST, follow=True)
        if path.suffix == ".csv":
            return read_csv(BytesIO(content)), {}
        found = json.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    rows = _rows(found.get(under) if isinstance(found, dict) and under else found)
    if not rows:
        raise RequestError(f"{path} has no rows: a list of objects was expected under {under!r}")
    frame = json_normalize(rows)
    if "heads" in frame:  # some benchmarks give two numbers
        frame["heads"] = [each if isinstance(each, str) else ":".join(map(str, each)) for each in frame["heads"]]
    about = {name: value for name, value in found.items() if name != under} if isinstance(found, dict) else {}
    return frame.astype(object).where(frame.notna(), None).infer_objects(), about


def _rows(found: Any) -> list[dict[str, Any]]:
    if isinstance(found, dict):
        named = found and all(isinstance(each, dict) for each in found.values())
        return [{"name": name, **each} for name, each in found.items()] if named else [found]
    is_list = isinstance(found, list) and all(isinstance(each, dict) for each in found)
    return found if is_list else []
