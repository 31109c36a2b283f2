"""`longca recommend`: the fastest kernel and strategy for a mask, and whether they fit. It needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.errors import RequestError, UnknownNameError
from longca.limits import MAX_RANKS
from longca.parsing import parse_head_dim, parse_heads
from longca_bench.cli import options
from longca_bench.cli.mask_options import MaskOptions
from longca_bench.cli.options import chosen_directions, flag, open_registry, option, print_json, takes_options

if TYPE_CHECKING:
    from longca_advice.choices import Recommendation
    from longca_advice.models import Model

__all__ = ["check_known", "recommend"]


@takes_options(MaskOptions, "described")
def recommend(
    context: typer.Context,
    pattern: options.Pattern = None,
    model: Annotated[
        str | None,
        option(
            "A model such as gpt-oss-120b, or the path of its config.json, in place of --heads.",
            complete=options.models,
        ),
    ] = None,
    heads: options.Heads = "32:8",
    head_dim: Annotated[str, option(options.HEAD_DIM, "N[:NV]")] = "128",
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
    softcap: Annotated[float | None, option("Bound c of the scores s: c·tanh(s/c), as 50 in Gemma 2.", "C")] = None,
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
    from longca_advice.model_recommendation import ModelRecommendation, recommend_model
    from longca_advice.recommend import recommend as ask

    pattern = described.named(pattern)
    directions, shape = chosen_directions(direction), parse_heads(heads)
    dim, dim_v = parse_head_dim(head_dim)
    if Direction.FORWARD not in directions:
        raise RequestError("a backward needs its forward, and --direction training predicts both, each with its time")
    known = _model(context, model)
    registry = with_known(open_registry(context, no_plugin))
    if why is not None:
        check_known(why, [*registry.kernels, *registry.strategies])
    described.check_given(pattern)
    mask = described.mask(pattern, shape[1] if known is None else known.kinds[0].heads[1])
    asked: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "ranks": gpus,
        "per_node": per_node,
        "network": network,
        "training": Direction.BACKWARD in directions,
        "memory": memory,
        "records": tuple(records or ()),
        "kernels": tuple(kernel or ()),
        "strategies": tuple(strategy or ()),
        "plugins": registry,
        "allow_unverified": unverified,
    }
    answer: Recommendation | ModelRecommendation
    if known is None:
        answer = ask(mask, heads=shape, head_dim=dim, head_dim_v=dim_v, softcap=softcap, sinks=sinks, **asked)
        parts = [answer]
    else:
        answer = recommend_model(mask, known, **asked)
        parts = [layer.found for layer in answer.layers]
    if as_json:
        print_json(answer.as_json())
        return
    from longca_bench.reports.model_recommendation import print_model
    from longca_bench.reports.recommendation import print_recommendation, print_why
    from longca_bench.reports.text import console

    for each in parts:
        if why is not None:
            print_why(console(), each, why, tuple(registry.strategies))
        elif known is None or everything:
            print_recommendation(console(), each, everything=everything)
        if len(parts) > 1 and (why is not None or everything):
            typer.echo()
    if isinstance(answer, ModelRecommendation) and why is None:
        print_model(console(), answer)


def _model(context: typer.Context, model: str | None) -> Model | None:
    """The model of `--model`, which no option that it decides on may accompany."""
    if model is None:
        return None
    for name in ("heads", "head_dim", "softcap", "sinks"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise RequestError(f"--model {model} decides on {flag(name)} too; leave out one of them")
    from longca_advice.models import find_model

    return find_model(model)


def check_known(why: str, known: Sequence[str]) -> None:
    """Checks the name of `--why`: that of a kernel, of a strategy, or of a pair `a+b`."""
    for name in why.split("+"):
        if name.strip() not in known:
            raise UnknownNameError("kernel or strategy", name.strip(), known)
