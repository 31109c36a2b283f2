"""`longca report`: a run as tables, as files for other programs, and as charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longca_bench.cli.options import AsJson, print_json

__all__ = ["report"]


def report(
    run: Annotated[Path, typer.Argument(help="A run's folder, or its records.jsonl.")],
    out: Annotated[Path | None, typer.Option(help="Folder for files. (default: report, in the run's folder)")] = None,
    format_: Annotated[
        list[str] | None,
        typer.Option("--format", help="terminal, markdown, csv, parquet or png; repeatable. (default: terminal)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reports a run: tables here, or a Markdown page, CSV, Parquet or charts in a folder."""
    from longca_bench.reports.formats import checked_formats, write_reports
    from longca_bench.reports.run_source import open_run

    formats = checked_formats(format_ or ["terminal"])
    opened = open_run(run)
    files = write_reports(opened, out or opened.folder / "report", formats)
    if "png" in formats and not any(file.suffix == ".png" for file in files):
        typer.echo("no chart is drawn: charts are of one device's cases, and this run has none", err=True)
    if as_json:
        records = [record.model_dump(mode="json") for record in opened.records]
        print_json({"environment": opened.environment, "records": records, "files": [str(file) for file in files]})
        return
    from longca_bench.reports.run_table import print_run
    from longca_bench.reports.text import console, safe

    target = console()
    if "terminal" in formats:
        print_run(target, opened.records)
    for file in files:
        target.print(f"wrote {safe(file)}", soft_wrap=True)
