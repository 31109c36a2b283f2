"""The runner of a job: its cases one after another, each placed, resolved, measured by all ranks, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from longca.errors import UnsupportedError
from longca.manifests import Device
from longca.plugins import Registry
from longca_bench.measuring.advice import advice
from longca_bench.measuring.records import Record
from longca_bench.measuring.runner import Options, finished, identity, judged
from longca_bench.ranks.leader import Leader
from longca_bench.ranks.messages import Setup, Task
from longca_bench.suites.cases import Case
from longca_bench.suites.placing import placed
from longca_bench.suites.suite import Suite

__all__ = ["run_together"]


def run_together(
    leader: Leader,
    suite: Suite,
    cases: Sequence[Case],
    device: Device,
    registry: Registry,
    record: Callable[[Record], None],
    options: Options = Options(),
) -> list[Record]:
    """Runs cases on all ranks of a job.

    Args:
        leader: Of the job's ranks.
        suite: The suite they are of.
        cases: The cases, each with a strategy.
        device: What each rank runs on.
        registry: Where kernels and strategies come from.
        record: Called with each record as soon as it is there.
        options: How to run.

    Returns:
        The records, in the order in which they came.
    """
    with_backward = frozenset(case.seqlen for case in cases if case.direction == "backward")
    setup = Setup(device, options.disabled, with_backward, options.memory)
    records: list[Record] = []
    for case in cases:
        stopped = options.fail_fast and any(r.status not in ("ok", "unsupported") for r in records)
        fields = _about(suite, case, device, registry)
        try:
            task = Task(case, placed(registry, case, case.problem(device))[0])
        except UnsupportedError as error:
            made = finished(fields, "unsupported", str(error))
        else:
            made = _skipped(fields) if stopped else _measured(leader, setup, task, fields, options.deadline)
        record(made)
        records.append(made)
    return records


def _about(suite: Suite, case: Case, device: Device, registry: Registry) -> dict[str, Any]:
    parallel = case.parallel
    assert parallel is not None, "a job takes cases with a strategy"
    return {
        **identity(suite, case, device, registry),
        "flops": case.problem(device).flops,
        "strategy": parallel.strategy,
        "placement": parallel.placement,
        "world_size": parallel.world_size,
        "mesh": parallel.mesh_text,
    }


def _skipped(fields: dict[str, Any]) -> Record:
    return finished(fields, "skipped", "an earlier case failed, and --fail-fast was asked for")


def _measured(leader: Leader, setup: Setup, task: Task, fields: dict[str, Any], seconds: float) -> Record:
    case = task.case
    outcome = judged(leader.run(setup, task, seconds), setup.device, case)
    form = outcome.fields.get("form")
    told = {"placed": task.placed, **outcome.fields, "advice": advice(outcome.status, outcome.message, form)}
    return finished({**fields, **told}, outcome.status, outcome.message)
