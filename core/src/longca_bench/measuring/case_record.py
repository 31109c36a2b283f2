"""The record of a case: its identity, and the result of its measurement."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from longca.manifests import Device, Transport
from longca.plain_text import plain_text
from longca.plugins import Registry
from longca_advice.devices import peak_tflops
from longca_advice.evidence import said
from longca_bench.measuring.messages import Result
from longca_bench.measuring.records import Record
from longca_bench.measuring.status import Status
from longca_bench.suites.case import Case
from longca_bench.suites.suite import Suite
from longca_bench.suites.tasks import Task

__all__ = ["identity", "judged", "measured_record", "record_of"]


def identity(suite: Suite, case: Case, device: Device, registry: Registry) -> dict[str, Any]:
    """The fields of a record that are known before anything is measured."""
    mask, providers = case.mask, registry.providers(case.kernel)
    name = str(device)
    fields = {
        "case": case.digest(name),
        "suite": suite.name,
        "suite_version": suite.version,
        "suite_digest": suite.digest,
        "kernel": case.kernel,
        "distribution": " + ".join(provider.distribution for provider in providers),
        "distribution_version": " + ".join(provider.version for provider in providers),
        "device": name,
        "pattern": case.pattern,
        "seqlen": case.seqlen,
        "lengths": case.lengths,
        "seed": case.seed,
        "factors": dict(case.factors),
        "heads_q": case.heads_q,
        "heads_kv": case.heads_kv,
        "head_dim": case.head_dim,
        "head_dim_v": case.head_dim_v,
        "softcap": case.softcap,
        "dtype": case.dtype,
        "direction": case.direction,
        "sinks": case.sinks,
        "mask_digest": mask.digest,
        "area": mask.area,
        "density": mask.density,
        "tile_efficiency": mask.tile_efficiency(),
        "flops": case.problem(device).flops,
    }
    if (parallel := case.parallel) is not None:
        provider = registry.strategy_provider(parallel.strategy)
        fields |= {
            "strategy": parallel.strategy,
            "strategy_distribution": f"{provider.distribution} {provider.version}",
            "placement": parallel.placement,
            "transport": None if parallel.transport is Transport.AUTO else str(parallel.transport),
            "world_size": parallel.world_size,
            "mesh": parallel.mesh_text,
        }
    return fields


def measured_record(about: dict[str, Any], task: Task, result: Result) -> Record:
    """The record of a measured case, with advice if it failed. A result that no record can hold is an `error`."""
    known = {"placed": task.placed, "form": None if task.placed else task.form, "unverified": task.unverified}
    fields = {**known, **result.fields}
    advice = result.status.advise(task.case.kernel, result.message, fields["form"])
    try:
        record = record_of({**about, **fields, "advice": advice}, result.status, result.message)
        record.model_dump_json()
    except (ValidationError, PydanticSerializationError) as error:
        why = said(error, "record") if isinstance(error, ValidationError) else plain_text(error)
        return record_of(about, Status.ERROR, f"the result cannot be recorded: {why}")
    return record


def judged(result: Result, device: Device, case: Case) -> Result:
    """A result, or `suspect` in place of `ok` for a throughput that no such device can have."""
    peak, reached = peak_tflops(device.name, case.dtype), result.fields.get("tflops")
    if result.status is not Status.OK or peak is None or reached is None or reached <= peak:
        return result
    message = f"{reached:.0f} TFLOP/s is more than the {peak:.0f} that a {device.name} can do in {case.dtype}"
    return Result(Status.SUSPECT, message, result.fields)


def record_of(fields: dict[str, Any], status: Status, message: str) -> Record:
    """The record of a case that ended now, by its fields, of which an unmeasured case has only the identity."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Record.model_validate({**fields, "status": status, "message": message, "finished": now})
