"""`longca show-mask`: a picture of a mask, in the terminal or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longca_bench.cli.mask_options import WHICH, MaskOptions, takes_mask
from longca_bench.cli.options import AsJson, print_json

__all__ = ["show_mask"]


@takes_mask("mask_heads")
def show_mask(
    pattern: Annotated[str, typer.Argument(help=WHICH)],
    described: MaskOptions = MaskOptions(),
    heads: Annotated[
        int | None, typer.Option("--mask-heads", "--heads", help="Heads with masks of their own. (default: 1)")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw to this .png, .svg or .pdf file instead of the terminal.")
    ] = None,
    tile: Annotated[
        int | None, typer.Option(min=1, help="Block size of the picture, which shades full and partial blocks.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draws a picture of a mask. Factors that are not given are drawn at random, as for the paper.

    Example: longca show-mask causal_document --seqlen 8192 --out mask.png
    """
    from longca.masks import SliceMask
    from longca.masks.mask_files import slices_as_json
    from longca_bench.reports.mask_picture import draw_mask
    from longca_bench.reports.mask_text import text_picture
    from longca_bench.reports.text import console, printable

    mask = described.mask(pattern, heads)
    if out is not None:
        draw_mask(mask, out, block=tile)
    if as_json:
        names = ("pattern", "seqlen_q", "seqlen_k", "heads", "factors", "area", "density", "digest")
        about = {name: getattr(mask, name) for name in names} | {"tile_efficiency": mask.tile_efficiency()}
        print_json(about | ({"slices": slices_as_json(mask)} if isinstance(mask, SliceMask) else {}))
        return
    side = max(8, min(64, console().width - 4))
    said = text_picture(mask, width=side, height=side // 2) if out is None else f"wrote {printable(str(out))}"
    console().print(said, markup=False, soft_wrap=True)
