"""The runner: cases handed to workers, each resolved, measured within a deadline, and recorded.

A worker that dies or is ended is replaced, and the next case is unaffected. Several workers, one a GPU, share the
cases; those of one shape go to one worker in a row, because they share inputs and a reference.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from longca.manifests import Device
from longca.plugins import Registry
from longca_advice.devices import evidence_name, peak_tflops
from longca_advice.evidence import Run
from longca_advice.from_records import row_of
from longca_advice.history import append
from longca_bench.measuring.advice import advice
from longca_bench.measuring.environment import package_versions
from longca_bench.measuring.interleave import Turns
from longca_bench.measuring.messages import Outcome, Setup
from longca_bench.measuring.pool import Worker
from longca_bench.measuring.records import Record
from longca_bench.suites.cases import Case
from longca_bench.suites.suite import Suite

__all__ = ["DEADLINE", "Options", "failed", "finished", "identity", "judged", "run_cases"]

#: Seconds a case may take, compiling and verifying included.
DEADLINE = 600.0


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        deadline: Seconds a case may take.
        memory: Bytes a worker may take; None for no limit.
        fail_fast: Whether to skip what is left after the first case that is neither ok nor unsupported.
        disabled: Plugins to leave out.
        workers: Worker processes; on several GPUs one each.
        interleave: Whether the suite's two kernels take turns on each case, in one worker each.
    """

    deadline: float = DEADLINE
    memory: int | None = None
    fail_fast: bool = False
    disabled: frozenset[str] = frozenset()
    workers: int = 1
    interleave: bool = False


def run_cases(
    suite: Suite,
    cases: Sequence[Case],
    device: Device,
    registry: Registry,
    record: Callable[[Record], None],
    options: Options = Options(),
) -> list[Record]:
    """Runs cases.

    Args:
        suite: The suite they are of.
        cases: The cases.
        device: What they run on.
        registry: Where kernels come from.
        record: Called with each record as soon as it is there, one at a time.
        options: How to run.

    Returns:
        The records, in the order in which they came.
    """
    run = _Run(suite, device, registry, record, options)
    with_backward = frozenset(case.seqlen for case in cases if case.direction == "backward")
    setup = Setup(device, options.disabled, with_backward, options.memory)
    kernels = list(dict.fromkeys(case.kernel for case in cases))
    count = len(kernels) if options.interleave else options.workers
    workers = [Worker(setup, None if options.interleave else index) for index in range(count)]
    groups = deque([list(group) for _, group in groupby(cases, key=_shape)])
    try:
        if options.interleave:
            run.take_turns(dict(zip(kernels, workers, strict=True)), groups)
        elif len(workers) == 1:
            run.work(workers[0], groups)
        else:
            threads = [threading.Thread(target=run.work, args=(worker, groups), daemon=True) for worker in workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        run.close()
        for worker in workers:
            worker.kill()
    if run.error is not None:
        raise run.error
    return run.records


def _shape(case: Case) -> tuple[Any, ...]:
    return case.pattern, case.seqlen, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype, case.factors


class _Run:
    """What workers share while a run goes on."""

    def __init__(
        self, suite: Suite, device: Device, registry: Registry, record: Callable[[Record], None], options: Options
    ) -> None:
        self.records: list[Record] = []
        self.error: BaseException | None = None
        self._suite, self._device, self._registry = suite, device, registry
        self._record, self._options = record, options
        self._lock = threading.Lock()
        self._stopped = self._closed = False
        self._here = Run(
            run="this machine",
            device=evidence_name(device),
            capability=device.capability,
            memory=device.memory,
            packages=package_versions(registry),
        )

    def close(self) -> None:
        """Keeps nothing from here on: what a worker that is being ended says of its case is no result."""
        with self._lock:
            self._closed = True

    def work(self, worker: Worker, groups: deque[list[Case]]) -> None:
        """Takes groups of cases until there are none."""
        try:
            while (group := self._next(groups)) is not None:
                for case in group:
                    self._keep(self._one(lambda case: worker.run(case, self._options.deadline), case))
        except BaseException as error:
            self.error = self.error or error
            self._stopped = True
            groups.clear()

    def _next(self, groups: deque[list[Case]]) -> list[Case] | None:
        with self._lock:
            return groups.popleft() if groups and not self._closed else None

    def take_turns(self, workers: dict[str, Worker], groups: deque[list[Case]]) -> None:
        """Has kernels take turns on each problem, until there are no more."""
        for group in groups:
            for direction in dict.fromkeys(case.direction for case in group):
                cases = [case for case in group if case.direction == direction]
                pair = [c for c in cases if self._registry.resolve(c.kernel, c.problem(self._device))]
                turns = Turns(workers, pair, self._options.deadline)
                for case in cases:
                    self._keep(self._one(turns, case))

    def _keep(self, record: Record) -> None:
        with self._lock:
            if self._closed:
                return
            self._record(record)
            self.records.append(record)
        if self._options.fail_fast and record.status not in ("ok", "unsupported"):
            self._stopped = True

    def _one(self, measure: Callable[[Case], Outcome], case: Case) -> Record:
        problem = case.problem(self._device)
        fields = {**identity(self._suite, case, self._device, self._registry), "flops": problem.flops}
        verdict = self._registry.resolve(case.kernel, problem)
        if not verdict:
            return finished(fields, "unsupported", " ".join(str(reason) for reason in verdict.reasons))
        if self._stopped:
            return finished(fields, "skipped", "an earlier case failed, and --fail-fast was asked for")
        outcome = judged(measure(case), self._device, case)
        told = advice(outcome.status, outcome.message, verdict.form)
        fields |= {"form": verdict.form, **outcome.fields, "advice": told}
        record = finished(fields, outcome.status, outcome.message)
        if outcome.status == "ok":
            append(row_of(record.model_dump(mode="json"), self._here, mask=case.mask))
        return record


def judged(outcome: Outcome, device: Device, case: Case) -> Outcome:
    """The outcome of a case; one that no hardware could have is suspect."""
    peak, reached = peak_tflops(device.name, case.dtype), outcome.fields.get("tflops")
    if outcome.status != "ok" or peak is None or reached is None or reached <= peak:
        return outcome
    message = f"{reached:.0f} TFLOP/s is more than the {peak:.0f} that a {device.name} can do in {case.dtype}"
    return Outcome("suspect", message, outcome.fields)


def identity(suite: Suite, case: Case, device: Device, registry: Registry) -> dict[str, Any]:
    """The fields of a record that say what is measured, on what."""
    mask, providers = case.mask, registry.providers(case.kernel)
    name = str(device)
    return {
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
        "dtype": case.dtype,
        "direction": case.direction,
        "mask_digest": mask.digest,
        "area": mask.area,
        "density": mask.density,
        "tile_efficiency": mask.tile_efficiency(),
    }


def finished(fields: dict[str, Any], status: str, message: str) -> Record:
    """The record of a case that ends now."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Record.model_validate({**fields, "status": status, "message": message, "finished": now})


def failed(records: Iterable[Record]) -> bool:
    """Whether any case was neither measured nor unsupported by declaration."""
    return any(record.status not in ("ok", "unsupported") for record in records)
