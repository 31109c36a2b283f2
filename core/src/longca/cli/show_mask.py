"""`longca show-mask`: a mask as a picture, in the terminal or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.cli.options import AsJson, print_json

if TYPE_CHECKING:
    from longca.masks import Mask

__all__ = ["show_mask"]


def show_mask(
    pattern: Annotated[str, typer.Argument(help="A mask pattern, such as causal_document.")],
    seqlen: Annotated[int, typer.Option(help="Queries; keys too, unless --seqlen-k says otherwise.")] = 4096,
    seqlen_k: Annotated[int | None, typer.Option(help="Keys, for patterns that allow Sq ≠ Sk.")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Document lengths: pile, prolong64k, prolong512k, mix, or a file.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn.")] = 0,
    documents: Annotated[str | None, typer.Option(help="Document lengths that sum to seqlen: 1000,96,3000.")] = None,
    window: Annotated[int | None, typer.Option(help="How far a query sees.")] = None,
    prefix: Annotated[int | None, typer.Option(help="Tokens of the prefix.")] = None,
    block: Annotated[int | None, typer.Option(help="Tokens a block of the pattern.")] = None,
    global_tokens: Annotated[int | None, typer.Option(help="Leading tokens that see and are seen by all.")] = None,
    boundaries: Annotated[str | None, typer.Option(help="Block bounds from 0 to seqlen: 0,100,4096.")] = None,
    kept: Annotated[float | None, typer.Option(help="Share of blocks kept.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads with masks of their own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Draw to this .png, .svg or .pdf, not in the terminal.")] = None,
    tile: Annotated[int | None, typer.Option(help="Tokens a block whose full and partial ones are told apart.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draws a mask. Factors that are not given are drawn as LongCA-bench draws them."""
    given: dict[str, Any] = {
        "documents": _integers("documents", documents),
        "window": window,
        "prefix": prefix,
        "block": block,
        "global_tokens": global_tokens,
        "boundaries": _integers("boundaries", boundaries),
        "kept": kept,
        "heads": heads,
    }
    _check_tile(tile)
    mask = _make(pattern, seqlen, seqlen_k, lengths, seed, {k: v for k, v in given.items() if v is not None})
    if out is not None:
        from longca.reports.mask_picture import draw_mask

        draw_mask(mask, out, block=tile)
    if as_json:
        print_json(_as_json(mask))
    elif out is None:
        _print_picture(mask)
    else:
        _say_written(out)


def _check_tile(tile: int | None) -> None:
    if tile is not None:
        from longca.reports.mask_picture import check_block

        check_block(tile)


def _make(
    pattern: str, seqlen: int, seqlen_k: int | None, lengths: str | None, seed: int, factors: dict[str, Any]
) -> Mask:
    from longca.masks import build, get_pattern, sample

    if seqlen_k is None:
        return sample(pattern, seqlen, lengths=lengths, seed=seed, **factors)
    if "window" in get_pattern(pattern).factors:
        factors.setdefault("window", 1024)
    return build(pattern, seqlen, seqlen_k=seqlen_k, **factors)


def _integers(name: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    from longca.errors import RequestError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(f"--{name} is {text!r}; give integers separated by commas, such as 1000,96,3000") from None


def _print_picture(mask: Mask) -> None:
    from longca.reports.mask_picture import text_picture
    from longca.reports.text import console

    out = console()
    side = max(8, min(64, out.width - 4))
    out.print(text_picture(mask, width=side, height=side // 2), markup=False, soft_wrap=True)


def _say_written(file: Path) -> None:
    from longca.reports.text import console, safe

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
