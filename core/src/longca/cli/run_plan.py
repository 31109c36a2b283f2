"""What a run would measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from longca.cli.options import print_json

if TYPE_CHECKING:
    from longca.bench.cases import Case
    from longca.manifests import Device
    from longca.plugins import Registry

__all__ = ["print_plan"]


def print_plan(registry: Registry, cases: list[Case], device: Device, as_json: bool) -> None:
    """Prints what would be measured, by which form, and what would not and why.

    Args:
        registry: Where kernels and strategies come from.
        cases: The cases.
        device: What they would run on.
        as_json: Whether to print JSON.
    """
    rows = [_row(registry, case, device) for case in cases]
    if as_json:
        print_json(rows)
        return
    from longca.reports.run_cells import mask_name
    from longca.reports.text import printable

    names = [mask_name(row["pattern"], row["factors"]) for row in rows]
    wide = max(24, *map(len, names))
    for row, name in zip(rows, names, strict=True):
        outcome = row["form"] or "unsupported: " + " ".join(row["reasons"])
        shared = f" {row['strategy']:15} {row['placement']:15} {row['mesh']:20}" if row.get("strategy") else ""
        about = f"{row['kernel']:12} {name:{wide}} {row['seqlen']:>8} {row['heads']:>6} {row['direction']:9}"
        typer.echo(printable(f"{about}{shared} {outcome}"))


def _row(registry: Registry, case: Case, device: Device) -> dict[str, Any]:
    about = {
        "kernel": case.kernel,
        "pattern": case.pattern,
        "factors": dict(case.factors),
        "seqlen": case.seqlen,
        "heads": f"{case.heads_q}:{case.heads_kv}",
        "direction": case.direction,
    }
    problem = case.problem(device)
    if case.parallel is None:
        verdict = registry.resolve(case.kernel, problem)
        return {**about, "form": verdict.form or None, "reasons": [str(reason) for reason in verdict.reasons]}
    from longca.bench.distributed.runner import placed
    from longca.errors import UnsupportedError

    about |= {"strategy": case.parallel.strategy, "placement": case.parallel.placement, "mesh": case.parallel.mesh_text}
    try:
        placement, layout = placed(registry, case, problem)
    except UnsupportedError as error:
        return {**about, "form": None, "reasons": [str(error)]}
    form = registry.resolve(case.kernel, problem, layout).form
    return {**about, "placement": placement, "form": form, "reasons": []}
