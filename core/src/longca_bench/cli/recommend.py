"""`longca recommend`: the fastest kernel and strategy for a mask, and whether they fit. It needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from longca.errors import RequestError, UnknownNameError
from longca.limits import MAX_RANKS
from longca.parsing import parse_heads
from longca_bench.cli import options
from longca_bench.cli.mask_options import MaskOptions, takes_mask
from longca_bench.cli.options import chosen_directions, open_registry, option, print_json

__all__ = ["check_known", "recommend"]


@takes_mask()
def recommend(
    context: typer.Context,
    pattern: options.Pattern = None,
    heads: options.Heads = "32:8",
    head_dim: Annotated[int, option("Head dimension.", "N")] = 128,
    dtype: Annotated[str, option("Data type of q, k and v, such as bf16.", "NAME")] = "bfloat16",
    direction: Annotated[str, option("forward alone, or training for forward and backward.", "NAME")] = "training",
    device: options.DeviceName = None,
    gpus: Annotated[int, option("Number of devices that share the tokens.", "N", min=1, max=MAX_RANKS)] = 1,
    per_node: Annotated[int, option("Number of devices of a host.", "N", min=1, max=MAX_RANKS)] = 8,
    network: Annotated[
        str | None,
        option("Link in a host: pcie4, pcie5, nvlink; to other hosts: 400Gb or 50GB/s,5µs; or pcie4+400Gb.", "SPEED"),
    ] = None,
    memory: Annotated[str | None, option("Memory of each device, such as 80GB.", "SIZE")] = None,
    records: Annotated[
        list[Path] | None, option("Take the records of this run as evidence too. Repeatable.", "FOLDER")
    ] = None,
    kernel: options.Kernels = None,
    strategy: options.Strategies = None,
    unverified: Annotated[
        bool, option("List kernels too that nobody verified on the device, with a mark.", None, "--unverified")
    ] = False,
    sinks: Annotated[bool, option("Choose for query heads with sinks, as in gpt-oss.", None, "--sinks")] = False,
    everything: Annotated[bool, option("List all choices and all refusals.", None, "--all")] = False,
    why: Annotated[str | None, option("Explain the place of this kernel, pair or strategy.", "NAME")] = None,
    described: MaskOptions = MaskOptions(),
    as_json: options.AsJson = False,
    no_plugin: options.NoPlugin = None,
) -> None:
    """Recommends a kernel and a strategy for a mask, from evidence. It runs no kernel.

    The evidence is the measurements that come with LongCA, the measurements of this machine, and the records of the
    folders given with --records.

    Example: longca recommend causal --seqlen 65536 --device h200 --gpus 8
    """
    from longca.manifests.problem import Direction
    from longca_advice.known_plugins import with_known
    from longca_advice.recommend import recommend as ask

    pattern = described.named(pattern)
    directions, shape = chosen_directions(direction), parse_heads(heads)
    if Direction.FORWARD not in directions:
        raise RequestError("a backward needs its forward, and --direction training predicts both, each with its time")
    registry = with_known(open_registry(context, no_plugin))
    if why is not None:
        check_known(why, [*registry.kernels, *registry.strategies])
    described.check_given(pattern)
    found = ask(
        described.mask(pattern, shape[1]),
        heads=shape,
        head_dim=head_dim,
        dtype=dtype,  # type: ignore[arg-type]  # Problem checks it
        device=device,
        ranks=gpus,
        per_node=per_node,
        network=network,
        training=Direction.BACKWARD in directions,
        memory=memory,
        records=tuple(records or ()),
        kernels=tuple(kernel or ()),
        strategies=tuple(strategy or ()),
        plugins=registry,
        allow_unverified=unverified,
        sinks=sinks,
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
