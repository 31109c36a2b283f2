"""Data frames as files: CSV and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longca.errors import MissingPackageError

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["write_csv", "write_parquet"]


def write_csv(frame: DataFrame, path: Path) -> Path:
    """Writes CSV with a header. An unknown value is empty.

    Args:
        frame: The rows.
        path: Where to.

    Returns:
        The path.
    """
    frame.to_csv(path, index=False, lineterminator="\n")
    return path


def write_parquet(frame: DataFrame, path: Path) -> Path:
    """Writes Parquet with the same columns as CSV. An unknown value is null.

    Args:
        frame: The rows.
        path: Where to.

    Returns:
        The path.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401  # without it, pandas names another remedy
    except ImportError:
        raise MissingPackageError("pyarrow", "writing Parquet", "pip install 'longca-core[parquet]'") from None
    with path.open("wb") as file:  # pyarrow opens no path that is not UTF-8
        frame.to_parquet(file, index=False)
    return path
