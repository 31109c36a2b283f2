"""`longca show-mask`: a picture of a mask, in the terminal or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca_bench.cli.mask_options import MaskOptions, takes_mask
from longca_bench.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from longca.masks import Mask

__all__ = ["show_mask"]


@takes_mask("mask_heads")
def show_mask(
    pattern: Annotated[str, typer.Argument(help="A mask pattern, such as causal_document.")],
    described: MaskOptions = MaskOptions(),
    heads: Annotated[
        int | None, typer.Option("--mask-heads", "--heads", help="Heads with masks of their own. (default: 1)")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw to this .png, .svg or .pdf file instead of the terminal.")
    ] = None,
    tile: Annotated[
        int | None, typer.Option(help="Block size of the picture, which shades full and partial blocks.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draws a picture of a mask. Factors that are not given are drawn at random, as for the paper.

    Example: longca show-mask causal_document --seqlen 8192 --out mask.png
    """
    _check_tile(tile)
    mask = described.mask(pattern, heads)
    if out is not None:
        from longca_bench.reports.mask_picture import draw_mask

        draw_mask(mask, out, block=tile)
    if as_json:
        print_json(_as_json(mask))
    elif out is None:
        _print_picture(mask)
    else:
        _say_written(out)


def _check_tile(tile: int | None) -> None:
    if tile is not None:
        from longca_bench.reports.mask_picture import check_block

        check_block(tile)


def _print_picture(mask: Mask) -> None:
    from longca_bench.reports.mask_text import text_picture
    from longca_bench.reports.text import console

    out = console()
    side = max(8, min(64, out.width - 4))
    out.print(text_picture(mask, width=side, height=side // 2), markup=False, soft_wrap=True)


def _say_written(file: Path) -> None:
    from longca_bench.reports.text import console, safe

    console().print(f"wrote {safe(file)}", soft_wrap=True)


def _as_json(mask: Mask) -> dict[str, Any]:
    return {
        "pattern": mask.pattern,
        "seqlen_q": mask.seqlen_q,
        "seqlen_k": mask.seqlen_k,
        "heads": mask.heads,
        "factors": dict(mask.factors),
        "area": mask.area,
        "density": mask.density,
        "tile_efficiency": mask.tile_efficiency(),
        "digest": mask.digest,
    }
