"""What a run would measure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from longca_bench.cli.options import print_json

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.suites.cases import Case

__all__ = ["print_plan"]

#: Seconds of a plan in JSON after which stderr says how far it is.
_SILENCE = 2.0


def print_plan(registry: Registry, cases: list[Case], device: Device, as_json: bool) -> None:
    """Prints what would be measured, by which form, and what would not and why; each case as soon as it is known.

    JSON is printed when all are known; meanwhile stderr says how many are.

    Args:
        registry: Where kernels and strategies come from.
        cases: The cases.
        device: What they would run on.
        as_json: Whether to print JSON.
    """
    if not as_json:
        _print_rows(registry, cases, device)
        return
    rows = []
    said = time.monotonic()
    for case in cases:
        rows.append(_row(registry, case, device))
        if time.monotonic() - said > _SILENCE:
            said = time.monotonic()
            typer.echo(f"[{len(rows)}/{len(cases)}] cases are resolved", err=True)
    print_json(rows)


def _print_rows(registry: Registry, cases: list[Case], device: Device) -> None:
    from longca_bench.reports.run_cells import mask_name
    from longca_bench.reports.text import printable

    wide = max([24, *(len(mask_name(case.pattern, dict(case.factors))) for case in cases)])
    for case in cases:
        row = _row(registry, case, device)
        outcome = row["form"] or "unsupported: " + " ".join(row["reasons"])
        shared = f" {row['strategy']:15} {row['placement']:15} {row['mesh']:20}" if row.get("strategy") else ""
        name = mask_name(row["pattern"], row["factors"])
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
    from longca.errors import UnsupportedError
    from longca_bench.suites.placing import placed

    about |= {"strategy": case.parallel.strategy, "placement": case.parallel.placement, "mesh": case.parallel.mesh_text}
    try:
        placement, layout = placed(registry, case, problem)
    except UnsupportedError as error:
        return {**about, "form": None, "reasons": [str(error)]}
    form = registry.resolve(case.kernel, problem, layout).form
    return {**about, "placement": placement, "form": form, "reasons": []}
