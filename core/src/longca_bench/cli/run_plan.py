"""The plan of a run: `longca run --dry-run`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from longca_bench.cli.options import print_json

if TYPE_CHECKING:
    from longca.manifests import Device
    from longca.plugins import Registry
    from longca_bench.suites.case import Case

__all__ = ["print_plan"]

#: Seconds without output after which stderr gets the progress of a plan in JSON.
_SILENCE = 2.0


def print_plan(registry: Registry, cases: list[Case], device: Device, as_json: bool) -> None:
    """Prints each case with the form that would be measured, or with the reasons against it.

    Lines are printed as soon as each case is resolved. If some kernels run on the device, one line names those that run
    on other devices only. JSON is printed at the end, and stderr has the progress.

    Args:
        registry: The registry of kernels and strategies.
        cases: The cases.
        device: The device of the run.
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
    from longca.manifests.verdict import paragraph
    from longca_bench.reports.text import printable
    from longca_bench.reports.words import elsewhere_text, mask_name
    from longca_bench.suites.tasks import is_elsewhere

    apart = dict.fromkeys(case.kernel for case in filter(is_elsewhere(registry, device), cases))
    here = [case for case in cases if case.kernel not in apart] or cases
    wide = max([24, *(len(mask_name(case.pattern, dict(case.factors))) for case in cases)])
    for case in here:
        row = _row(registry, case, device)
        outcome = row["form"] or f"unsupported: {paragraph(row['reasons'])}"
        shared = f" {row['strategy']:15} {row['placement']:15} {row['mesh']:20}" if row.get("strategy") else ""
        name = mask_name(row["pattern"], row["factors"])
        about = f"{row['kernel']:12} {name:{wide}} {row['seqlen']:>8} {row['heads']:>6} {row['direction']:9}"
        typer.echo(printable(f"{about}{shared} {outcome}"))
    if len(here) < len(cases):
        typer.echo(printable(elsewhere_text(len(cases) - len(here), apart)))


def _row(registry: Registry, case: Case, device: Device) -> dict[str, Any]:
    about = {
        "kernel": case.kernel,
        "pattern": case.pattern,
        "factors": dict(case.factors),
        "seqlen": case.seqlen,
        "heads": f"{case.heads_q}:{case.heads_kv}",
        "direction": case.direction,
    }
    if case.parallel is None:
        verdict = registry.resolve(case.kernel, case.problem(device))
        return {**about, "form": verdict.form or None, "reasons": [str(reason) for reason in verdict.reasons]}
    from longca.errors import UnsupportedError
    from longca_bench.suites.tasks import task_of

    about |= {"strategy": case.parallel.strategy, "placement": case.parallel.placement, "mesh": case.parallel.mesh_text}
    try:
        task = task_of(registry, case, device)
    except UnsupportedError as error:
        return {**about, "form": None, "reasons": [str(error)]}
    return {**about, "placement": task.placed, "form": task.form, "reasons": []}
