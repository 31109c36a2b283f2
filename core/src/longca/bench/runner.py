"""The runner: a suite's cases one after another, each resolved, measured and recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from longca.bench.cases import Case
from longca.bench.measure import Bench
from longca.bench.records import Record
from longca.bench.suite import Suite
from longca.kernels import history
from longca.manifests import Device
from longca.plugins import Registry

__all__ = ["run_cases"]


def run_cases(
    suite: Suite,
    cases: Sequence[Case],
    device: Device,
    registry: Registry,
    record: Callable[[Record], None],
) -> list[Record]:
    """Runs cases in order.

    Args:
        suite: The suite they are of.
        cases: The cases.
        device: What they run on.
        registry: Where kernels come from.
        record: Called with each record as soon as it is there.
    """
    bench = Bench(device, with_backward=any(case.direction == "backward" for case in cases))
    records = []
    for case in cases:
        records.append(_run(suite, case, device, registry, bench))
        record(records[-1])
    return records


def _run(suite: Suite, case: Case, device: Device, registry: Registry, bench: Bench) -> Record:
    problem = case.problem(device)
    fields: dict[str, Any] = {**_identity(suite, case, device, registry), "flops": problem.flops}
    verdict = registry.resolve(case.kernel, problem)
    if not verdict:
        reasons = " ".join(str(reason) for reason in verdict.reasons)
        return _finished(fields, status="unsupported", message=reasons)
    try:
        measured = bench.measure(case, registry.load(case.kernel))
    except torch.OutOfMemoryError as error:
        return _finished(fields, status="oom", message=str(error))
    except Exception as error:  # whatever a kernel raises is a result of that kernel, and the next case runs
        return _finished(fields, status="error", message=f"{type(error).__name__}: {error}")
    fields |= measured.fields()
    if measured.timing is None:
        failures = "; ".join(map(str, measured.verification.failures))
        return _finished(fields, status="wrong", message=failures)
    history.append(history.Entry.of(case.kernel, problem, measured.timing.median))
    return _finished(fields, status="ok")


def _identity(suite: Suite, case: Case, device: Device, registry: Registry) -> dict[str, Any]:
    mask, provider = case.mask, registry.provider(case.kernel)
    name = str(device)
    return {
        "case": case.digest(name),
        "suite": suite.name,
        "suite_version": suite.version,
        "suite_digest": suite.digest,
        "kernel": case.kernel,
        "distribution": provider.distribution,
        "distribution_version": provider.version,
        "device": name,
        "pattern": case.pattern,
        "seqlen": case.seqlen,
        "lengths": case.lengths,
        "seed": case.seed,
        "heads_q": case.heads_q,
        "heads_kv": case.heads_kv,
        "head_dim": case.head_dim,
        "dtype": case.dtype,
        "direction": case.direction,
        "mask_digest": mask.digest,
        "area": mask.area,
        "density": mask.density,
        "tile_efficiency": mask.tile_efficiency(),
    }


def _finished(fields: dict[str, Any], **more: Any) -> Record:
    return Record(**fields, **more, finished=datetime.now(UTC).isoformat(timespec="seconds"))
