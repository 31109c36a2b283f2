"""`longca show-mask`: a picture of a mask, in the terminal or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from longca.parsing import parse_heads, parse_tokens
from longca_bench.cli import options
from longca_bench.cli.mask_options import MaskOptions
from longca_bench.cli.options import option, print_json, takes_options

__all__ = ["show_mask"]


@takes_options(MaskOptions, "described")
def show_mask(
    pattern: options.Pattern = None,
    heads: options.Heads = "1:1",
    described: MaskOptions = MaskOptions(),
    out: Annotated[Path | None, option("Draw to this .png, .svg or .pdf file instead of the terminal.", "FILE")] = None,
    tile: Annotated[
        int | None,
        option("Block size of the picture, which shades full and partial blocks.", "N", read=parse_tokens),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Draws a picture of a mask. Factors that are not given are drawn at random, as for the paper.

    Example: longca show-mask causal_document --seqlen 8192 --out mask.png
    """
    from longca.masks import SliceMask
    from longca.masks.mask_files import slices_as_json
    from longca_bench.reports.mask_picture import draw_mask
    from longca_bench.reports.mask_text import text_picture
    from longca_bench.reports.text import console, printable

    mask = described.mask(described.named(pattern), parse_heads(heads)[1])
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
