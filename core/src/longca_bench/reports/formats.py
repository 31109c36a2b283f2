"""The formats of a report. To add a format, add an entry to `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from longca.errors import MissingPackageError, RequestError, UnknownNameError
from longca_bench.reports.views import tables

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["FORMATS", "Format", "checked_formats", "write_reports"]


@dataclass(frozen=True)
class Format:
    """A format: the suffix of its files, and the function that writes rows or a view of them. A terminal has none.

    Attributes:
        name: The name of its file without a view. Empty for a folder of several files.
        views: Whether it can show a view.
    """

    suffix: str
    write: Callable[[Rows, str | None, Path], list[Path]] | None
    name: str = ""
    views: bool = True


def _markdown(rows: Rows, view: str | None, path: Path) -> list[Path]:
    from longca_bench.reports.markdown import markdown_of, page_of

    text = page_of(rows) if view is None else f"{markdown_of(tables(view, rows))}\n"
    path.write_text(text, encoding="utf-8")
    return [path]


def _csv(rows: Rows, view: str | None, path: Path) -> list[Path]:
    _frame(rows, view).to_csv(path, index=False, lineterminator="\n")
    return [path]


def _parquet(rows: Rows, view: str | None, path: Path) -> list[Path]:
    try:
        import pyarrow  # noqa: F401  # without it, pandas names another remedy
    except ImportError:
        raise MissingPackageError("pyarrow", "writing Parquet", "pip install 'longca-core[parquet]'") from None
    with path.open("wb") as file:  # pyarrow opens no path that is not UTF-8
        _frame(rows, view).to_parquet(file, index=False)
    return [path]


def _html(rows: Rows, view: str | None, path: Path) -> list[Path]:
    from longca_bench.reports.html.page import write_html

    return [write_html(rows, path)]


def _png(rows: Rows, view: str | None, path: Path) -> list[Path]:
    from longca_bench.reports.charts import draw_charts

    return draw_charts(rows, path)


FORMATS = {
    "terminal": Format("", None),
    "markdown": Format(".md", _markdown, "report"),
    "csv": Format(".csv", _csv, "records"),
    "parquet": Format(".parquet", _parquet, "records"),
    "html": Format(".html", _html, "report", views=False),
    "png": Format(".png", _png, views=False),
}


def checked_formats(names: Sequence[str], view: str | None = None) -> list[str]:
    """The formats asked for, each once.

    Raises:
        UnknownNameError: There is no such format.
        RequestError: A format cannot show a view.
    """
    for name in names:
        if name not in FORMATS:
            raise UnknownNameError("format", name, FORMATS)
        if view is not None and not FORMATS[name].views:
            raise RequestError(f"the format {name} has no views; leave out --view, or choose another --format")
    return list(dict.fromkeys(names))


def write_reports(rows: Rows, out: Path, formats: Sequence[str], view: str | None = None) -> list[Path]:
    """Writes files of the formats asked for into a folder, whole or as a view. A terminal has no file.

    `out` is the file if one format is asked for and the path has its suffix.

    Raises:
        RequestError: The place cannot be written to, or a format has no views.
        MissingPackageError: A format needs a package that is not installed.
    """
    written: list[Path] = []
    wanted = [FORMATS[name] for name in checked_formats(formats, view) if FORMATS[name].write is not None]
    try:
        for each in wanted:
            is_file = len(wanted) == 1 and each.name and out.suffix == each.suffix and not out.is_dir()
            (out.parent if is_file else out).mkdir(parents=True, exist_ok=True)
            path = out if is_file or not each.name else out / f"{view or each.name}{each.suffix}"
            assert each.write is not None
            written += each.write(rows, view, path)
    except OSError as error:
        raise RequestError(f"cannot write to {out}: {error.strerror}. Choose another place with --out") from None
    return written


def _frame(rows: Rows, view: str | None) -> DataFrame:
    """A view's values, one table below the other. Without a view it has every record."""
    from pandas import DataFrame, concat

    if view is None:
        return rows.flat()
    found = [table.frame() for table in tables(view, rows)]
    return concat(found, ignore_index=True) if found else DataFrame()
