"""`longca recommend`: the fastest kernel and strategy for a mask, and whether they fit. It needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from longca.errors import RequestError, UnknownNameError
from longca.limits import MAX_RANKS
from longca_bench.cli.mask_options import WHICH, MaskOptions, takes_mask
from longca_bench.cli.options import AsJson, NoPlugin, open_registry, print_json

__all__ = ["check_known", "parse_heads", "recommend"]


@takes_mask()
def recommend(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help=WHICH)],
    heads: Annotated[str, typer.Option(metavar="HQ:HKV", help="Query heads and KV heads, such as 64:8.")] = "32:8",
    head_dim: Annotated[int, typer.Option(help="Head dimension.")] = 128,
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Data type of q, k and v.")] = "bfloat16",
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="h200, h100, a100, b200, cuda:9.0 or cpu. (default: this machine's GPU)"),
    ] = None,
    gpus: Annotated[int, typer.Option(help="Number of devices that share the tokens.", min=1, max=MAX_RANKS)] = 1,
    per_node: Annotated[int, typer.Option(help="Number of devices of a host.", min=1, max=MAX_RANKS)] = 8,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="SPEED",
            help="Link in a host: pcie4, pcie5, nvlink; to other hosts: 400Gb or 50GB/s,5µs; or both: pcie4+400Gb.",
        ),
    ] = None,
    forward: Annotated[bool, typer.Option("--forward", help="Only the forward, without training.")] = False,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each device, such as 80GB.")] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Take the records of this run as evidence too. Repeatable."),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this kernel, or this pair such as fa3+fa4. Repeatable."),
    ] = None,
    strategy: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this strategy. Repeatable.")] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="List kernels too that nobody verified on the device, with a mark.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="List all choices and all refusals.")] = False,
    why: Annotated[
        str | None, typer.Option(metavar="NAME", help="Explain the place of this kernel, pair or strategy.")
    ] = None,
    described: MaskOptions = MaskOptions(),
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Recommends a kernel and a strategy for a mask, from evidence. It runs no kernel.

    The evidence is the measurements that come with LongCA, the measurements of this machine, and the records of the
    folders given with --records.

    Example: longca recommend causal --seqlen 65536 --device h200 --gpus 8
    """
    from longca.masks import get_pattern
    from longca_advice.known_plugins import with_known
    from longca_advice.recommend import recommend as ask

    shape, registry = parse_heads(heads), with_known(open_registry(context, no_plugin))
    if why is not None:
        check_known(why, [*registry.kernels, *registry.strategies])
    described.check_given(pattern)
    found = ask(
        described.mask(pattern, shape[1] if get_pattern(pattern).per_head else None),
        heads=shape,
        head_dim=head_dim,
        dtype=dtype,  # type: ignore[arg-type]  # Problem checks it
        device=device,
        ranks=gpus,
        per_node=per_node,
        network=network,
        training=not forward,
        memory=memory,
        records=tuple(records or ()),
        kernels=tuple(kernel or ()),
        strategies=tuple(strategy or ()),
        plugins=registry,
        allow_unverified=unverified,
    )
    if as_json:
        print_json(found.as_json())
        return
    from longca_bench.reports.recommendation import print_recommendation, print_why
    from longca_bench.reports.text import console

    if why is not None:
        print_why(console(), found, why, tuple(registry.strategies))
    else:
        print_recommendation(console(), found, everything=everything)


def check_known(why: str, known: Sequence[str]) -> None:
    """Checks the name of `--why`: that of a kernel, of a strategy, or of a pair `a+b`."""
    for name in why.split("+"):
        if name.strip() not in known:
            raise UnknownNameError("kernel or strategy", name.strip(), known)


def parse_heads(text: str, example: str = "64:8") -> tuple[int, int]:
    """Query heads and KV heads of a text such as `64:8`. A single number such as `32` stands for both."""
    query, colon, kv = text.partition(":")
    if not _is_count(query) or (colon and not _is_count(kv)):
        raise RequestError(f"--heads is {text!r}; give query heads and KV heads, such as {example}")
    return int(query), int(kv or query)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
