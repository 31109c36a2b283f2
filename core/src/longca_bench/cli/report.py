"""`longca report`: runs as tables, as files for other programs, as a page, and as charts."""

from __future__ import annotations

import gc
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError, UnknownNameError
from longca_bench.cli.options import AsJson, print_json, say_complaints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longca_bench.reports.rows import Rows

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="A run's folder, its records.jsonl, or a folder of runs.")
    ],
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tables of this view, such as throughput. (default: a summary)")
    ] = None,
    format_: Annotated[
        list[str] | None,
        typer.Option(
            "--format", metavar="NAME", help="terminal, markdown, csv, parquet, html, png, svg, pdf. Repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="File of one format, or folder. (default: report, in the run's folder)"),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Keep rows with this value, such as kernel=fa3,fa4. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Reports runs: tables here, or files: a Markdown page, CSV, Parquet, an HTML page or the picture of a view.

    Example: longca report runs/tuesday --view fastest --where seqlen=128K --format markdown
    """
    from longca_bench.reports.formats import PICTURES, checked_formats, write_reports
    from longca_bench.reports.rows import Rows
    from longca_bench.reports.runs import complaints
    from longca_bench.reports.views import VIEWS

    formats = checked_formats(format_ or ["terminal"], view)
    if view is not None and view not in VIEWS:
        raise UnknownNameError("view", view, VIEWS)
    gc.disable()  # Records have no cycles. A search for cycles takes a third of the time of large runs.
    rows = Rows.read(*runs)
    chosen = rows.where(**_conditions(rows, where or []))
    files = write_reports(chosen, out or rows.runs[0].folder / "report", formats, view)
    if len(files) < sum(name != "terminal" for name in formats):
        typer.echo(f"no {' or '.join(set(PICTURES) & set(formats))} is drawn, because no case has a time", err=True)
    wrong = complaints(rows.runs)
    if as_json:
        print_json({**_data(chosen, view), "complaints": wrong, "files": [str(file) for file in files]})
    else:
        _print(chosen, view, files, tables="terminal" in formats)
    say_complaints(wrong)


def _print(rows: Rows, view: str | None, files: Sequence[Path], tables: bool) -> None:
    from longca_bench.reports.terminal import print_summary, print_view
    from longca_bench.reports.text import console, safe

    target = console()
    if tables:
        print_summary(target, rows) if view is None else print_view(target, rows, view)
    for file in files:
        target.print(f"wrote {safe(file)}", soft_wrap=True)


def _conditions(rows: Rows, given: list[str]) -> dict[str, Any]:
    """Values by column, each as the column's own type reads it.

    Raises:
        RequestError: A text is no condition.
        UnknownNameError: There is no such column, or no row has the value.
    """
    from longca_bench.reports.columns import column

    found: dict[str, list[Any]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name == "condition":
            raise RequestError(f"--where {text} is no condition; give COLUMN=VALUE, such as kernel=fa3")
        if rows[name].map(lambda each: isinstance(each, dict | list | tuple)).any():
            raise RequestError(f"--where {text}: {name} has nested values; give another column, such as mask")
        read = (column(name).format, str)  # as tables print a value, and as it is stored
        values = {_plain(text(each)): each for text in read for each in rows[name].dropna().unique()}
        for asked in [value] if _plain(value) in values else value.split(","):
            kept = [values[key] for key in values if _plain(asked) == key or fnmatchcase(key, _plain(asked))]
            if not kept:
                raise UnknownNameError(name, asked, [str(each) for each in dict.fromkeys(values.values())])
            found.setdefault(name, []).extend(kept)
    return found


def _plain(text: str) -> str:
    return text.replace(" ", "").lower()


def _data(rows: Rows, view: str | None) -> dict[str, Any]:
    """The fields that `--json` prints beside the files."""
    if view is not None:
        from longca_bench.reports.views import tables

        return {"tables": [table.as_json() for table in tables(view, rows)]}
    records = [record.model_dump(mode="json") for record in rows.records()]
    environments = {str(run.folder): run.environment for run in rows.runs}
    one = next(iter(environments.values())) if len(environments) == 1 else environments
    return {"environment": one, "records": records}
