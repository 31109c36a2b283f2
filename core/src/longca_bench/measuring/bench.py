"""The bench: one case is planned, verified, and only then timed, and verified again. One device or all ranks do so."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from longca.errors import LongCAError
from longca.manifests import Problem
from longca_bench.measuring.gpu_state import gpu_state
from longca_bench.measuring.kernel_trial import KernelTrial, WrongResultError
from longca_bench.measuring.memory import is_exhausted
from longca_bench.measuring.messages import Result, Setup
from longca_bench.measuring.noise import own_processes, quietly
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.shares import InputCache, SharedInputs
from longca_bench.measuring.status import CaseEndError, Status, failure
from longca_bench.measuring.timing import take_samples
from longca_bench.measuring.world import Instruments
from longca_bench.suites.tasks import Task
from longca_bench.verification.findings import Verification

if TYPE_CHECKING:
    from longca_bench.measuring.strategy_trial import StrategyTrial

__all__ = ["SHARE", "Bench"]

#: Share of a CUDA device's memory that this process's own tensors may take. The rest is for the kernel and its results.
SHARE = 0.75
#: Seconds that a worker may take to start.
_START = 300.0


class Bench:
    """Measures cases, together with the benches of the other ranks."""

    def __init__(self, setup: Setup, instruments: Instruments) -> None:
        self._device, self._options, self._instruments = setup.device, setup.options, instruments
        self._world, self._announce = instruments.world, instruments.announce
        self._seconds: float | None = None
        self._limit = 0.0
        self._own = (os.getppid(),) if self._world.size > 1 else ()  # which supervises a rank
        self._inputs = InputCache(self._world, setup.with_backward)

    def result(self, task: Task, seconds: float | None) -> Result:
        """Measures a case. Faults of a plugin's code are results, and so is a lack of memory here.

        The deadline runs from the worker's start on. Ranks have none: their leader holds them to it.
        """
        workers, phases, self._seconds = self._instruments.workers, self._announce, seconds
        workers.deadline = None
        try:
            return self._with_all_memory(task)
        except CaseEndError as end:
            if end.status is Status.TIMEOUT:
                message = f"still in phase {phases.last!r} after {self._limit:g} s; it was ended"
            else:
                is_dead = end.status is Status.CRASHED and seconds is not None  # a leader names the phases of ranks
                message = f"{end} in phase {phases.last!r}" if is_dead else str(end)
            return Result(end.status, message, {})
        except Exception as error:  # this process's own memory may be out, or another rank may be gone
            text = f"{type(error).__name__}: {error}"
            exhausted = is_exhausted(error, text)
            if isinstance(error, LongCAError):  # this case cannot be measured
                return Result(failure(exhausted=exhausted), text, {})
            how = "has no memory left." if exhausted else "failed in this case:"
            said = f"the runner, which holds inputs and references, {how} {text}"
            return Result(failure(exhausted=exhausted), said, {}, is_last=True)

    def _with_all_memory(self, task: Task) -> Result:
        """The result of a case, in which this process or the kernel may need the memory that other workers keep."""
        workers = self._instruments.workers
        try:
            return self.measure(task)
        except Exception as error:
            if isinstance(error, CaseEndError):
                lacks_memory = error.status is Status.OOM and workers.keep_memory
            else:
                lacks_memory = is_exhausted(error, str(error))
            if self._world.size > 1 or not lacks_memory:  # ranks measure together
                raise
        # The error is gone now, and with it the tensors of the frames that it came through.
        workers.end()
        gc.collect()
        torch.cuda.empty_cache()
        return self.measure(task)

    def measure(self, task: Task) -> Result:
        """Verifies a case, times it if it is right, and verifies it again. Only rank 0's result has the measured
        fields.
        """
        if self._world.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(SHARE)  # of the current device, which is this one
        self._world.meet()
        trial = self._planned(task)
        found, fields = self._verified(trial)
        times: dict[str, Any] = {}
        if found.passed:
            self._instruments.world.give_back()
            try:
                times = self._timed(trial)
                if trial.suspicion(busy=times["machine"]["busy"]):  # the pace of the machine may have changed
                    times = self._timed(trial)
                self._announce("verify again")
                again = trial.verify_again().findings
                found += Verification(tuple(f.named(f"{f.tensor} after timing") for f in again))
            except WrongResultError as error:
                found += error.found
        fields["findings"] = tuple(map(asdict, found.findings))
        if not found.passed:
            fields |= {name: times[name] for name in ("peak_bytes", "gpu") if name in times}
            return Result(Status.WRONG, "; ".join(map(str, found.failures)), fields)
        doubt = trial.suspicion(busy=times["machine"]["busy"])
        status = Status.SUSPECT if doubt else Status.OK
        return Result(status, doubt, {**fields, **times} if self._world.rank == 0 else {})

    def _planned(self, task: Task) -> KernelTrial | StrategyTrial:
        """The trial of a case. The plan is made before its worker gets inputs, so it can compute nothing with them."""
        problem = task.case.problem(self._device)
        make = self._planned_here if task.sharing is None else self._planned_on_ranks
        return make(task, problem)

    def _planned_here(self, task: Task, problem: Problem) -> KernelTrial | StrategyTrial:
        kernel = RemoteKernel(self._instruments.workers, task.case.kernel, task.distributions)
        kernel.begin()
        shared = self._shared(task, problem)  # while the worker starts, which takes a second
        self._announce("start")
        self._begin_deadline(_START)
        kernel.start()
        self._begin_deadline(self._seconds)
        self._announce("load")
        kernel.load()
        self._announce("plan")
        plan = kernel.plan(problem)
        if plan.form_text != task.form:
            message = f"the plan's form is {plan.form_text}; the offer that covers the problem takes {task.form}"
            raise CaseEndError(Status.WRONG, message)
        return KernelTrial(kernel, plan, task, shared, self._instruments)

    def _begin_deadline(self, seconds: float | None) -> None:
        if self._seconds is not None and seconds is not None:
            self._limit, self._instruments.workers.deadline = seconds, time.monotonic() + seconds

    def _planned_on_ranks(self, task: Task, problem: Problem) -> KernelTrial | StrategyTrial:
        # Only ranks import torch.distributed.
        from longca_bench.measuring.remote_strategy import RemoteStrategy
        from longca_bench.measuring.strategy_trial import StrategyTrial

        strategy = RemoteStrategy(self._instruments, task)
        strategy.start()
        self._announce("load")
        strategy.load()
        self._announce("plan")
        planned = strategy.plan(problem)
        return StrategyTrial(strategy, problem, planned, task, self._shared(task, problem), self._instruments)

    def _shared(self, task: Task, problem: Problem) -> SharedInputs:
        """The inputs and the reference of a case."""
        self._announce("inputs")
        if not self._inputs.has(task.case):
            self._inputs.drop()
            self._instruments.workers.trim()
        shared = self._inputs.of(task.case, problem)
        self._instruments.world.give_back()
        return shared

    def _verified(self, trial: KernelTrial | StrategyTrial) -> tuple[Verification, dict[str, Any]]:
        """The verification before timing, and the fields that are known by then."""
        self._announce("verify")
        found, seconds = self._instruments.clocked(trial.verify)
        if trial.is_forward and found.passed:
            found += trial.check_counts()
        return found, {**trial.fields, "first_seconds": max(self._world.everyone(seconds))}

    def _timed(self, trial: KernelTrial | StrategyTrial) -> dict[str, Any]:
        """The times, and what belongs to them."""
        self._announce("time")
        before, peaks = trial.before_timing(), trial.peaks()
        timing, machine = quietly(
            lambda: take_samples(trial.sample, self._world, self._instruments.budget, trial.inspect),
            self._world,
            self._own,
            self._options.wait_idle,
        )
        wall = trial.wall(timing)
        gpu = gpu_state(own_processes({os.getpid(), *self._own})) if self._device.kind == "cuda" else None
        return before | {
            "samples": timing.samples,
            "wall": wall,
            "warm_up": timing.warm_up,
            "median": timing.median,
            "tflops": trial.problem.flops / self._world.size / timing.median / 1e12,
            "peak_bytes": max(peaks) if peaks else None,
            "gpu": gpu,
            "machine": machine,
            **trial.after_timing(timing, peaks),
        }
