"""`longca show-layout`: how ranks share a mask under a strategy, in numbers or as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError, UnsupportedError
from longca.limits import MAX_RANKS
from longca.parsing import parse_heads
from longca_bench.cli import options
from longca_bench.cli.mask_options import MaskOptions
from longca_bench.cli.options import chosen_directions, open_registry, option, print_json, takes_options

if TYPE_CHECKING:
    from longca.manifests import Problem
    from longca.plugins import Registry
    from longca_bench.reports.layout_arrangement import Arrangement
    from longca_bench.reports.table import Table

__all__ = ["show_layout"]

#: The value of --placement for all placements side by side.
ALL = "all"


@takes_options(MaskOptions, "described", ("seqlen_k", "mask_heads"))
def show_layout(
    context: typer.Context,
    strategy: Annotated[str, typer.Argument(help="A strategy, such as ring_p2p.", autocompletion=options.strategies)],
    pattern: Annotated[
        str | None, option(f"{options.WHICH} (default: causal)", None, "--mask", complete=options.masks)
    ] = None,
    gpus: Annotated[
        int | None, option("Ranks, split evenly over the strategy's axes. (default: 4)", "N", min=1, max=MAX_RANKS)
    ] = None,
    mesh: Annotated[str | None, option("Ranks along each axis, such as ring=2,ulysses=2.", "AXIS=N,...")] = None,
    placement: Annotated[
        str | None, option("A placement of tokens, or all side by side. (default: the strategy's first)", "NAME")
    ] = None,
    heads: options.Heads = "32:8",
    direction: options.DirectionName = "forward",
    out: Annotated[Path | None, option("Draw to this .png, .svg or .pdf, instead of numbers.", "FILE")] = None,
    described: MaskOptions = MaskOptions(),
    as_json: options.AsJson = False,
    no_plugin: options.NoPlugin = None,
) -> None:
    """Shows how ranks share a mask under a strategy. It needs no GPU and moves nothing.

    Without --out it prints each rank's tokens, steps and pairs, and the bytes that are sent. A picture shows the calls
    in their order, and the transfers between them. A long mask is drawn in blocks of tokens.

    Example: longca show-layout usp --mask causal --gpus 4 --placement zigzag --out usp.png
    """
    from longca.manifests import Device, Problem

    registry = open_registry(context, no_plugin)
    sizes = _sizes(mesh, registry.strategy(strategy).axes, gpus)
    heads_q, heads_kv = parse_heads(heads)
    pattern = described.named("causal" if pattern is described.tree is None else pattern)
    asked = Problem(mask=described.mask(pattern), heads_q=heads_q, heads_kv=heads_kv, device=Device("cpu"))
    problems = [asked.in_direction(each) for each in chosen_directions(direction)]
    if len(problems) > 1 and out is not None:
        raise RequestError("a picture is of one direction; give --direction forward or backward")
    found = {each: _arranged(registry, strategy, each, sizes, placement) for each in problems}
    if as_json and len(found) > 1:
        print_json({str(each.direction): data for each, (_, data, _) in found.items()})
        return
    for each, (made, data, tables) in found.items():
        about = each.describe(where=f"{prod(sizes.values())} ranks")
        _show(made, data if as_json else None, tables, out, about)


def _arranged(
    registry: Registry, strategy: str, problem: Problem, sizes: dict[str, int], placement: str | None
) -> tuple[Any, dict[str, Any], list[Table]]:
    """The arrangement of one placement, or of all by their names, as plain data and as tables too."""
    from longca_bench.reports.layout_arrangement import arrange, arrangement_json, arrangement_tables, placement_table

    if placement != ALL:
        made = arrange(registry, strategy, problem, sizes, placement)
        return made, arrangement_json(made), arrangement_tables(made)
    found: dict[str, Arrangement | str] = {}
    for name in registry.strategy(strategy).placements:
        try:
            found[name] = arrange(registry, strategy, problem, sizes, name)
        except UnsupportedError as error:
            found[name] = str(error)
    data = {name: each if isinstance(each, str) else arrangement_json(each) for name, each in found.items()}
    return found, data, [placement_table(found)]


def _sizes(text: str | None, axes: Sequence[str], ranks: int | None) -> dict[str, int]:
    """Ranks along each axis, from --mesh or --gpus."""
    from longca_bench.suites.meshes import equal_mesh, mesh_of

    if text is None:
        return dict(zip(axes, equal_mesh(ranks or 4, len(axes)), strict=True))
    sizes = dict(mesh_of(text, axes))
    if (size := prod(sizes.values())) > MAX_RANKS:
        raise RequestError(f"--mesh {text} has {size} ranks; at most {MAX_RANKS} are allowed")
    if ranks not in (None, size):
        raise RequestError(f"--mesh {text} has {size} ranks, and --gpus is {ranks}; leave out one")
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
