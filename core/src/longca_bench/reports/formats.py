"""The files that a report writes, by format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from longca.errors import RequestError, UnknownNameError
from longca_bench.reports.run_source import Run

__all__ = ["FORMATS", "checked_formats", "write_reports"]

FORMATS = ("terminal", "markdown", "csv", "parquet", "png")


def checked_formats(names: Iterable[str]) -> list[str]:
    """The formats asked for, each once.

    Raises:
        UnknownNameError: There is no such format.
    """
    for name in names:
        if name not in FORMATS:
            raise UnknownNameError("format", name, FORMATS)
    return list(dict.fromkeys(names))


def write_reports(run: Run, folder: Path, formats: Iterable[str]) -> list[Path]:
    """Writes files of the formats asked for; `terminal` has none.

    Args:
        run: What to report.
        folder: Where to; made if it is not there.
        formats: Names of `FORMATS`.

    Returns:
        The files, in the order in which they were written.

    Raises:
        RequestError: The folder cannot be written to.
        MissingPackageError: Parquet was asked for without pyarrow.
    """
    wanted = [name for name in formats if name != "terminal"]
    if not wanted:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [file for name in wanted for file in _write(run, folder, name)]
    except OSError as error:
        raise RequestError(f"cannot write to {folder}: {error.strerror}. Choose another folder with --out") from None


def _write(run: Run, folder: Path, name: str) -> list[Path]:
    if name == "png":
        from longca_bench.reports.charts import draw_charts

        return draw_charts(run, folder)
    from longca_bench.reports.files import write_csv, write_parquet
    from longca_bench.reports.markdown import write_markdown
    from longca_bench.reports.rows import Rows

    if name == "markdown":
        return [write_markdown(run, folder / "report.md")]
    write = write_csv if name == "csv" else write_parquet
    return [write(Rows.of_runs([run]).flat(), folder / f"records.{name}")]
