"""`longca show-layout`: how ranks share a mask under a strategy, in numbers or as a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError, UnsupportedError
from longca.limits import MAX_RANKS
from longca_bench.cli.mask_options import WHICH, MaskOptions, takes_mask
from longca_bench.cli.options import AsJson, NoPlugin, open_registry, print_json
from longca_bench.cli.recommend import parse_heads

if TYPE_CHECKING:
    from longca_bench.reports.layout_arrangement import Arrangement
    from longca_bench.reports.table import Table

__all__ = ["parse_mesh", "show_layout"]

#: Ranks along an axis.
_SIZE = re.compile(r"[1-9][0-9]{0,5}")

#: The value of --placement for all placements side by side.
ALL = "all"


@takes_mask("seqlen_k", "mask_heads")
def show_layout(
    context: typer.Context,
    strategy: Annotated[str, typer.Argument(help="A strategy, such as ring_p2p. `longca plugins` lists them.")],
    pattern: Annotated[str, typer.Option("--mask", help=WHICH)] = "causal",
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks, split evenly over the strategy's axes. (default: 4)", min=1, max=MAX_RANKS),
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(help="Ranks along each axis, such as ring=2,ulysses=2, instead of --ranks.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="A placement of tokens, or all side by side. (default: the strategy's first)")
    ] = None,
    heads: Annotated[str, typer.Option(help="Query heads and KV heads, such as 64:8.")] = "32:8",
    direction: Annotated[str, typer.Option(help="forward or backward.")] = "forward",
    out: Annotated[Path | None, typer.Option(help="Draw to this .png, .svg or .pdf, instead of numbers.")] = None,
    described: MaskOptions = MaskOptions(),
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Shows how ranks share a mask under a strategy. It needs no GPU and moves nothing.

    Without --out it prints each rank's tokens, steps and pairs, and the bytes that are sent. A picture shows the calls
    in their order, and the transfers between them. A long mask is drawn in blocks of tokens.

    Example: longca show-layout usp --mask causal --ranks 4 --placement zigzag --out usp.png
    """
    from longca.manifests import Device, Problem

    registry = open_registry(context, no_plugin)
    axes = registry.strategy(strategy).axes
    sizes = parse_mesh(mesh, axes, ranks)
    heads_q, heads_kv = parse_heads(heads)
    problem = Problem(
        mask=described.mask(pattern),
        heads_q=heads_q,
        heads_kv=heads_kv,
        device=Device("cpu"),
        direction=direction,  # type: ignore[arg-type]  # Problem checks it
    )
    about = problem.describe(where=f"{prod(sizes.values())} ranks")
    from longca_bench.reports.layout_arrangement import (
        arrange,
        arrangement_json,
        arrangement_tables,
        placement_table,
    )

    if placement != ALL:
        made = arrange(registry, strategy, problem, sizes, placement)
        _show(made, arrangement_json(made) if as_json else None, arrangement_tables(made), out, about)
        return
    found: dict[str, Arrangement | str] = {}
    for name in registry.strategy(strategy).placements:
        try:
            found[name] = arrange(registry, strategy, problem, sizes, name)
        except UnsupportedError as error:
            found[name] = str(error)
    data = {name: each if isinstance(each, str) else arrangement_json(each) for name, each in found.items()}
    _show(found, data if as_json else None, [placement_table(found)], out, about)


def parse_mesh(text: str | None, axes: Sequence[str], ranks: int | None = None) -> dict[str, int]:
    """Ranks along each axis from a text such as `ring=2,ulysses=2`, in the order of the axes."""
    from longca_bench.suites.meshes import equal_mesh

    if text is None:
        return dict(zip(axes, equal_mesh(ranks or 4, len(axes)), strict=True))
    parts = [part.partition("=") for part in text.split(",")]
    found = {axis.strip(): size for axis, _, size in parts}
    if len(parts) != len(axes) or set(found) != set(axes) or not all(_SIZE.fullmatch(size) for size in found.values()):
        like = ",".join(f"{axis}=2" for axis in axes)
        raise RequestError(f"--mesh is {text!r}; give ranks for each of {', '.join(axes)}, such as {like}")
    sizes = {axis: int(found[axis]) for axis in axes}
    if prod(sizes.values()) > MAX_RANKS:
        raise RequestError(f"--mesh {text} has {prod(sizes.values())} ranks; at most {MAX_RANKS} are allowed")
    if ranks not in (None, prod(sizes.values())):
        raise RequestError(f"--mesh {text} has {prod(sizes.values())} ranks, and --ranks is {ranks}; leave out one")
    return sizes


def _show(made: Any, data: dict[str, Any] | None, tables: Iterable[Table], out: Path | None, about: str) -> None:
    """Draws a layout or those of all placements to a file, and prints them as JSON or as tables of a problem."""
    from longca_bench.reports.terminal import print_tables
    from longca_bench.reports.text import console, print_problem, safe

    if out is not None:
        from longca_bench.reports.layout_picture import draw_layout, draw_placements
        from longca_bench.reports.mask_picture import write_figure

        write_figure(draw_placements(made) if isinstance(made, dict) else draw_layout(made), out)
    if data is not None:
        print_json(data)
    elif out is not None:
        console().print(f"wrote {safe(out)}", soft_wrap=True)
    else:
        print_problem(console(), about)
        print_tables(console(), tables)
