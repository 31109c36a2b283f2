"""The formats of a report. To add a format, add its suffix to `FORMATS` and its writer to `_write`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from longca.errors import RequestError, UnknownNameError
from longca.manifests.installs import absent
from longca_bench.reports.views import drawn_view, tables

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["FORMATS", "PICTURES", "checked_formats", "write_reports"]

PICTURES = ("png", "svg", "pdf")
#: The suffix of each format's file. A terminal has none.
FORMATS = {"terminal": "", "markdown": ".md", "csv": ".csv", "parquet": ".parquet", "html": ".html"}
FORMATS |= {name: f".{name}" for name in PICTURES}


def checked_formats(names: Sequence[str], view: str | None = None) -> list[str]:
    """The formats asked for, each once.

    Raises:
        UnknownNameError: There is no such format.
        RequestError: A format cannot show a view.
    """
    for name in names:
        if name not in FORMATS:
            raise UnknownNameError("format", name, FORMATS)
        if view is not None and name == "html":
            raise RequestError("the format html has no views; leave out --view, or choose another --format")
    return list(dict.fromkeys(names))


def write_reports(rows: Rows, out: Path, formats: Sequence[str], view: str | None = None) -> list[Path]:
    """Writes files of the formats asked for into a folder, whole or as a view. A terminal has no file.

    `out` is the file if one format is asked for and the path has its suffix.

    Raises:
        RequestError: The place cannot be written to, or a format has no views.
        MissingPackageError: A format needs a package that is not installed.
    """
    written: list[Path] = []
    wanted = [name for name in checked_formats(formats, view) if name != "terminal"]
    try:
        for name in wanted:
            suffix = FORMATS[name]
            is_file = len(wanted) == 1 and out.suffix == suffix and not out.is_dir()
            (out.parent if is_file else out).mkdir(parents=True, exist_ok=True)
            stem = view or ("records" if name in ("csv", "parquet") else "report")
            written += _write(name, rows, view, out if is_file else out / f"{stem}{suffix}")
    except OSError as error:
        raise RequestError(f"cannot write to {out}: {error.strerror}. Choose another place with --out") from None
    return written


def _write(name: str, rows: Rows, view: str | None, path: Path) -> list[Path]:
    if name == "html":
        from longca_bench.reports.html.page import write_html

        return [write_html(rows, path)]
    if name in PICTURES:
        from longca_bench.reports.charts import draw_view

        return draw_view(drawn_view(view, rows), rows, path)
    if name == "markdown":
        from longca_bench.reports.markdown import markdown_of, page_of

        text = page_of(rows) if view is None else f"{markdown_of(tables(view, rows))}\n"
        path.write_text(text, encoding="utf-8")
        return [path]
    from pandas import DataFrame, concat

    found = [rows.flat()] if view is None else [table.frame() for table in tables(view, rows)]
    frame = concat(found, ignore_index=True) if found else DataFrame()
    if name == "csv":
        frame.to_csv(path, index=False, lineterminator="\n")
        return [path]
    try:
        import pyarrow  # noqa: F401  # without it, pandas names another remedy
    except ImportError as error:
        raise absent(error, "writing Parquet") or error from None
    with path.open("wb") as file:  # pyarrow opens no path that is not UTF-8
        frame.to_parquet(file, index=False)
    return [path]
