"""`longca make-lengths`: a histogram of document lengths from a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longca.cli.options import AsJson, print_json

__all__ = ["make_lengths"]


def make_lengths(
    corpus: Annotated[list[Path], typer.Argument(help="JSON Lines, one document a line, or text, one a file.")],
    out: Annotated[Path, typer.Option(help="Write the histogram to this .csv or .json.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A Hugging Face tokenizer.json. (default: count words)")
    ] = None,
    field: Annotated[str, typer.Option(help="The JSON field that holds a document's text.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Makes a histogram of document lengths, to be drawn from with --lengths."""
    from longca.masks.corpus import histogram_from_corpus

    histogram = histogram_from_corpus(corpus, tokenizer=tokenizer, field=field)
    histogram.write(out)
    if as_json:
        print_json(
            {
                "unit": histogram.unit,
                "documents": histogram.documents,
                "empty": histogram.empty,
                "rows": [list(row) for row in histogram.rows()],
            }
        )
        return
    from longca.reports.text import console, safe

    message = f"{histogram.documents} documents counted in {histogram.unit}"
    if histogram.empty:
        message += f", {histogram.empty} empty ones skipped"
    console().print(f"{message}; {len(histogram.weights)} bins written to {safe(out)}", soft_wrap=True)
