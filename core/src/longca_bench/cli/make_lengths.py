"""`longca make-lengths`: a histogram of document lengths, made from a corpus or from a list of lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longca_bench.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from longca_bench.suites.corpus import CorpusHistogram

__all__ = ["make_lengths"]


def make_lengths(
    corpus: Annotated[
        list[Path],
        typer.Argument(help="JSON Lines with a document a line, texts, or lengths as text, JSON, .npy or .idx."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Write the histogram to this .csv or .json file.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Hugging Face tokenizer.json. (default: count words)")
    ] = None,
    field: Annotated[str, typer.Option(metavar="NAME", help="The JSON field with a document's text.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Makes a histogram of document lengths. The option --lengths of other commands draws from it.

    Example: longca make-lengths corpus.jsonl --out lengths.csv
    """
    from longca_bench.suites.corpus import histogram_from_corpus

    histogram = histogram_from_corpus(corpus, tokenizer=tokenizer, field=field)
    histogram.write(out)
    _say_counted(corpus, histogram)
    if as_json:
        print_json(
            {
                "source": histogram.source,
                "unit": histogram.unit,
                "documents": histogram.documents,
                "empty": histogram.empty,
                "rows": [list(row) for row in histogram.rows()],
            }
        )
        return
    from longca_bench.reports.text import console, safe

    console().print(f"{_number(len(histogram.weights), 'bin')} written to {safe(out)}", soft_wrap=True)


def _say_counted(corpus: list[Path], histogram: CorpusHistogram) -> None:
    """Says on standard error how the files were read, and how many documents they have."""
    from longca_bench.reports.text import printable

    source = str(corpus[0]) if len(corpus) == 1 else f"{len(corpus)} files"
    if histogram.source == "lengths":
        said = f"{_number(histogram.documents, 'length')}, {' and '.join(histogram.forms)}"
    else:
        said = f"{histogram.source}, {_number(histogram.documents, 'document')} counted in {histogram.unit}"
    if histogram.empty:
        said += f", {histogram.empty:,} empty skipped"
    typer.echo(printable(f"{source}: {said}"), err=True)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
