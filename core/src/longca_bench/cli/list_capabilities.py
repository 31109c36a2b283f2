"""`longca list-capabilities`: the masks that each kernel takes on a device, and the reasons against the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.parsing import parse_head_dim, parse_heads
from longca_bench.cli import options
from longca_bench.cli.options import chosen_directions, open_registry, option, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from longca.manifests import KernelManifest, StrategyManifest
    from longca.plugins import Registry
    from longca_bench.reports.capabilities import Matrix, Question

__all__ = ["list_capabilities"]


def list_capabilities(
    context: typer.Context,
    kernel: options.Kernels = None,
    mask: Annotated[list[str] | None, option("Only this mask pattern. Repeatable.", complete=options.masks)] = None,
    device: options.DeviceName = None,
    direction: options.DirectionName = "training",
    heads: Annotated[str | None, option("Query heads and KV heads. (default: 64:8, else 8:8)", "HQ:HKV")] = None,
    dtype: Annotated[str | None, option("bf16, fp16, fp32, … (default: bfloat16, else any)", "NAME")] = None,
    head_dim: Annotated[str | None, option(f"{options.HEAD_DIM} (default: 128, else 64)", "N[:NV]")] = None,
    why: Annotated[tuple[str, str] | None, option("Explain one cell of the matrix.", "KERNEL PATTERN")] = None,
    as_json: options.AsJson = False,
    no_plugin: options.NoPlugin = None,
) -> None:
    """Lists the masks that each kernel takes on a device, and the reasons against the others.

    Example: longca list-capabilities --device cuda:9.0 --why fa3 causal_document
    """
    from longca.masks import PATTERNS, get_pattern
    from longca_advice.known_plugins import with_known
    from longca_bench.reports.capabilities import examine

    registry = open_registry(context, no_plugin)
    if kernel or why:  # a kernel by its name may be of a plugin that is not installed
        registry = with_known(registry)
    question = _question(device, heads, dtype, head_dim)
    directions = chosen_directions(direction)
    if why:
        kernels: Iterable[str] = [why[0]]
        patterns = [get_pattern(why[1])]
    else:
        kernels = kernel or registry.kernels
        every = sorted(PATTERNS, key=lambda name: PATTERNS[name].per_head)
        patterns = [get_pattern(name) for name in dict.fromkeys(mask or every)]
    manifests = {name: registry.manifest(name) for name in kernels}
    matrix = {
        (name, pattern.name): [examine(registry, name, pattern, way, question) for way in directions]
        for name in manifests
        for pattern in patterns
    }
    if as_json:
        print_json(_as_json(registry, question, manifests, matrix))
    elif why:
        _explain(registry, question, matrix)
    else:
        strategies = {} if kernel else registry.strategies
        _print(question, manifests, [pattern.name for pattern in patterns], matrix, strategies)


def _question(device: str | None, heads: str | None, dtype: str | None, head_dim: str | None) -> Question:
    from longca.manifests.offers import parse_dtype
    from longca.manifests.problem import Direction
    from longca.masks import PATTERNS
    from longca_advice.devices import named_device
    from longca_bench.reports.capabilities import Question

    asked = None if dtype is None else parse_dtype(dtype), None if heads is None else parse_heads(heads)
    dims = (None, None) if head_dim is None else parse_head_dim(head_dim)
    question = Question(named_device(device), *asked, *dims)
    question.problem(PATTERNS["full"], Direction.FORWARD)  # refuses what no problem may ask
    return question


def _as_json(
    registry: Registry, question: Question, manifests: Mapping[str, KernelManifest], matrix: Matrix
) -> dict[str, Any]:
    import longca

    provider = {name: each.distribution for each in registry.plugins for name in (*each.kernels, *each.strategies)}

    def about(kind: Mapping[str, Any], *further: str) -> dict[str, Any]:
        said = {"title", "upstream", "license", "requires", *further}
        return {
            name: {**manifest.model_dump(mode="json", include=said), "distribution": provider[name]}
            for name, manifest in kind.items()
        }

    return {
        "longca": longca.__version__,
        "device": vars(question.device),
        "asked": {name: getattr(question, name) for name in ("dtype", "heads", "head_dim", "head_dim_v")},
        "kernels": about(manifests, "family"),
        "strategies": about(registry.strategies, "axes", "placements"),
        "cells": [cell.as_json() for cells in matrix.values() for cell in cells],
    }


def _print(
    question: Question,
    manifests: Mapping[str, KernelManifest],
    patterns: list[str],
    matrix: Matrix,
    strategies: Mapping[str, StrategyManifest],
) -> None:
    from longca_bench.reports.capabilities import print_matrix, print_notes, print_strategies
    from longca_bench.reports.text import console, safe

    out = console()
    out.print(f"[bold]{safe(question.device)}[/]\n{question.describe()}\n")
    print_matrix(out, manifests, patterns, matrix)
    print_notes(out, manifests, matrix, question)
    print_strategies(out, strategies)
    out.print("\nlongca list-capabilities --why KERNEL PATTERN explains a cell.", style="dim")


def _explain(registry: Registry, question: Question, matrix: Matrix) -> None:
    from longca.masks import get_pattern
    from longca_bench.reports.capabilities import Reach, examine, print_explanation
    from longca_bench.reports.text import console

    ((kernel, name),) = matrix
    cells = matrix[kernel, name]
    others: dict[str, list[str]] = {}
    for cell in cells:
        way, pattern = cell.problem.direction, get_pattern(name)
        able = (k for k in registry.kernels if examine(registry, k, pattern, way, question).reach is Reach.HERE)
        others[way] = [k for k in able if k != kernel]
    print_explanation(console(), kernel, name, question, cells, others)
