"""The runner: each case is resolved, measured within its deadline, and recorded.

The kernels run in workers, so a kernel can end a case and nothing else. Several GPUs share the cases, with a thread for
each. Cases of one shape are measured in a row, because they share inputs and a reference. In a job of ranks, all ranks
measure each case together.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any

import torch

from longca.errors import UnsupportedError
from longca.kernels.base import torch_device
from longca.manifests import Device
from longca.plugins import Registry
from longca_advice.history import remember
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.case_record import identity, judged, measured_record, record_of
from longca_bench.measuring.environment import this_machine
from longca_bench.measuring.messages import Result, Setup
from longca_bench.measuring.options import Options
from longca_bench.measuring.records import Record
from longca_bench.measuring.status import Status
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import Instruments, World
from longca_bench.suites.case import Case
from longca_bench.suites.suite import Suite
from longca_bench.suites.tasks import Task, task_of

__all__ = ["ROUNDS", "run_cases"]

#: Turns that each of two kernels takes on a case.
ROUNDS = 4

_Measure = Callable[[Task, float], Result]
_Groups = deque[list[Case]]


def run_cases(
    suite: Suite,
    cases: Sequence[Case],
    device: Device,
    registry: Registry,
    record: Callable[[Record], None],
    options: Options = Options(),
    together: Callable[[Setup, Task, float], Result] | None = None,
) -> list[Record]:
    """Runs cases, and returns their records in the order in which they came. `record` gets each at once.

    `together` is `Leader.run` of a job, whose ranks measure each case together.
    """
    run = _Run(suite, device, registry, record, options)
    with_backward = frozenset(case.seqlen for case in cases if case.direction == "backward")
    setup = Setup(device, with_backward, options)
    groups = deque([list(group) for _, group in groupby(cases, key=_shape)])
    if together is not None:
        run.work(partial(together, setup), groups)
    else:
        _on_devices(run, setup, groups)
    if run.error is not None:
        raise run.error
    return run.records


def _on_devices(run: _Run, setup: Setup, groups: _Groups) -> None:
    """Runs groups of cases on each device, with workers that end afterwards."""
    options = setup.options
    count = 1 if options.interleave else options.workers
    every = [_workers(setup, index if count > 1 else None) for index in range(count)]

    def work(index: int, workers: Workers) -> None:
        device = workers.arena.device
        if count > 1 and device.type == "cuda":
            torch.cuda.set_device(index)  # of this thread
        bench = Bench(setup, Instruments(World(device), workers))
        (run.take_turns if options.interleave else run.work)(bench.result, groups)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(every)]
    try:
        if count == 1:
            work(0, every[0])
        else:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        run.close()
        for workers in every:
            workers.close()


def _workers(setup: Setup, gpu: int | None) -> Workers:
    """The workers of a device."""
    device, name = torch_device(setup.device), None
    if gpu is not None and device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        name = visible.split(",")[gpu] if visible else str(gpu)
        device = torch.device("cuda", gpu)
    return Workers(device, setup.options.memory, name)


def _shape(case: Case) -> tuple[Any, ...]:
    about = case.pattern, case.seqlen, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.head_dim_v
    return *about, case.softcap, case.dtype, case.factors


class _Run:
    """The state that devices share during a run."""

    def __init__(
        self, suite: Suite, device: Device, registry: Registry, record: Callable[[Record], None], options: Options
    ) -> None:
        self.records: list[Record] = []
        self.error: BaseException | None = None
        self._suite, self._device, self._registry = suite, device, registry
        self._record, self._options = record, options
        self._lock = threading.Lock()
        self._stopped = self._closed = False
        self._here = this_machine(registry, device)

    def close(self) -> None:
        """Keeps no further record: the last words of a worker that is being ended are not a result."""
        with self._lock:
            self._closed = True

    def work(self, measure: _Measure, groups: _Groups) -> None:
        """Takes groups of cases until no group is left."""
        try:
            while (group := self._next(groups)) is not None:
                for case in group:
                    self._keep(self._one(measure, case))
        except BaseException as error:
            self.error = self.error or error
            self._stopped = True
            groups.clear()

    def _next(self, groups: _Groups) -> list[Case] | None:
        with self._lock:
            return groups.popleft() if groups and not self._closed else None

    def take_turns(self, measure: _Measure, groups: _Groups) -> None:
        """Makes kernels take turns on each problem, until no problem is left."""
        for group in groups:
            for direction in dict.fromkeys(case.direction for case in group):
                cases = [case for case in group if case.direction == direction]
                tasks = [self._task(case) for case in cases]
                turns = _Turns(measure, [task for task in tasks if isinstance(task, Task)])
                for case in cases:
                    self._keep(self._one(turns, case))

    def _task(self, case: Case) -> Task | UnsupportedError:
        try:
            return task_of(self._registry, case, self._device)
        except UnsupportedError as error:
            return error

    def _keep(self, record: Record) -> None:
        with self._lock:
            if self._closed:
                return
            self._record(record)
            self.records.append(record)
        if self._options.fail_fast and record.status.is_failure:
            self._stopped = True

    def _one(self, measure: _Measure, case: Case) -> Record:
        about = identity(self._suite, case, self._device, self._registry)
        task = self._task(case)
        if isinstance(task, UnsupportedError):
            return record_of(about, Status.UNSUPPORTED, str(task))
        if self._stopped:
            message = "an earlier case failed, and the suite has fail_fast"
            return record_of(about, Status.SKIPPED, message)
        result = measure(task, self._options.deadline + self._options.wait_idle)
        record = measured_record(about, task, judged(result, self._device, case))
        if case.parallel is None:
            remember(record.model_dump(mode="json"), self._here, case.mask)
        return record


class _Turns:
    """Measures the tasks of both kernels on one problem by turns, so that a drift of the clocks meets both."""

    def __init__(self, measure: _Measure, pair: Sequence[Task]) -> None:
        self._measure, self._pair = measure, pair
        self._results: dict[Case, Result] | None = None

    def __call__(self, task: Task, seconds: float) -> Result:
        """The result of all turns of a task together."""
        if self._results is None:
            self._results = self._take_turns(seconds)
        return self._results[task.case]

    def _take_turns(self, seconds: float) -> dict[Case, Result]:
        turns: dict[Case, list[Result]] = {task.case: [] for task in self._pair}
        for _ in range(ROUNDS):
            for task in self._pair:
                results = turns[task.case]
                if not results or results[-1].status is Status.OK:
                    results.append(self._measure(task, seconds))
        return {case: _joined(results) for case, results in turns.items()}


def _joined(results: list[Result]) -> Result:
    """One result with the samples of all turns, or the failure of a turn."""
    last = results[-1]
    if last.status is not Status.OK:
        return last
    samples = _all("samples", results)
    middle = median(samples)
    flops = last.fields["tflops"] * last.fields["median"]
    fields = {
        **last.fields,
        **{name: _all(name, results) for name in ("samples", "wall", "warm_up")},
        "machine": next((each for each in _each("machine", results) if each["busy"]), last.fields["machine"]),
        "median": middle,
        "tflops": flops / middle,
    }
    return replace(last, fields=fields)


def _each(name: str, results: list[Result]) -> Iterator[Any]:
    return (result.fields[name] for result in results)


def _all(name: str, results: list[Result]) -> tuple[float, ...]:
    return tuple(value for values in _each(name, results) for value in values)
