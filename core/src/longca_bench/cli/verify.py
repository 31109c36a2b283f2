"""`longca verify`: every offer of a kernel held against float64 attention."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca_bench.cli.options import AsJson, NoPlugin, chosen_device, open_registry, print_json

if TYPE_CHECKING:
    from longca_bench.conformance.offers import OfferCheck

__all__ = ["verify"]


def verify(
    context: typer.Context,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only this kernel, or a pair such as fa3+fa4; repeatable. (default: all)")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. (default: cuda where there is one)")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Offers verified at a time, each in a process, on all GPUs in turn.")
    ] = 1,
    as_json: AsJson = False,
    no_plugin: NoPlugin = None,
) -> None:
    """Verifies kernels: per offer, dtype and direction the worst row's error, beside PyTorch's own, and where it is."""
    from longca_bench.conformance.verify_jobs import verify_kernels

    registry = open_registry(context, no_plugin)
    where = chosen_device(device)
    names = list(dict.fromkeys(kernel or registry.kernels))
    for name in names:
        registry.manifests(name)
    found: dict[str, list[OfferCheck]] = {}
    for name, checks in verify_kernels(registry, names, where, jobs):
        found[name] = checks
        if not as_json:
            _print(name, checks)
    if as_json:
        print_json({name: [_as_json(check) for check in checks] for name, checks in found.items()})
    if any(not check.passed and not check.skipped for checks in found.values() for check in checks):
        raise typer.Exit(1)


def _print(name: str, checks: list[OfferCheck]) -> None:
    from longca_bench.reports.text import console
    from longca_bench.reports.verify_table import print_verification

    print_verification(console(), name, checks)


def _as_json(check: OfferCheck) -> dict[str, Any]:
    return {
        "offer": check.offer.model_dump(mode="json"),
        "form": str(check.offer.form),
        "dtype": check.dtype,
        "direction": check.direction,
        "passed": check.passed,
        "skipped": check.skipped or None,
        "error": check.error or None,
        "masks": check.masks,
        "worst": _finding(*check.worst) if check.worst else None,
        "failures": [_finding(*failure) for failure in check.failures],
    }


def _finding(label: str, finding: Any) -> dict[str, Any]:
    """JSON has no NaN and no infinity: null stands for a comparison that is not there, or an error beyond number."""
    values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(finding).items()}
    return {"mask": label, **values}
