"""The bench: one case is planned, verified, and only then timed, and verified again. One device or all ranks do so."""

from __future__ import annotations

import os
import time
from collections.abc import Container
from dataclasses import asdict
from typing import Any

from longca.manifests import Device, Problem
from longca_bench.measuring.case_end import CaseEndError
from longca_bench.measuring.gpu_state import gpu_state
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.kernel_trial import KernelTrial
from longca_bench.measuring.messages import Result
from longca_bench.measuring.noise import quietly
from longca_bench.measuring.processor import process_tree
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.shared_inputs import InputCache, SharedInputs
from longca_bench.measuring.status import Status
from longca_bench.measuring.timing import take_samples
from longca_bench.measuring.trial import Trial, WrongResultError
from longca_bench.suites.tasks import Task
from longca_bench.verification.findings import Verification

__all__ = ["Bench"]

#: Times that a suspected case is timed, because the pace of a machine may change among the samples. After some seconds
#: it is timed twice at most.
ROUNDS, PATIENCE = 3, 10.0


class Bench:
    """Measures cases, together with the benches of the other ranks if there are any.

    Args:
        device: The device of each rank.
        instruments: The instruments of this rank.
        with_backward: Lengths whose references need gradients.
        wait_idle: Seconds that a case may wait for a quiet machine.
    """

    def __init__(
        self, device: Device, instruments: Instruments, with_backward: Container[int], wait_idle: float = 0.0
    ) -> None:
        self._device, self._instruments, self._wait_idle = device, instruments, wait_idle
        self._world, self._announce = instruments.world, instruments.announce
        self._inputs = InputCache(self._world, with_backward)

    def measure(self, task: Task) -> Result:
        """Verifies a case, times it if it is right, and verifies it again.

        Args:
            task: The case.

        Returns:
            The result. Only the first rank's result of a right case has the measured fields.

        Raises:
            CaseEndError: What the plugin's code did ends the case.
        """
        self._world.meet()
        trial = self._planned(task)
        found, fields = self._verified(trial)
        times: dict[str, Any] = {}
        if found.passed:
            self._instruments.world.give_back()
            try:
                begin = time.monotonic()
                for number in range(1, ROUNDS + 1):
                    times = self._timed(trial)
                    if not trial.suspicion():
                        break
                    if number > 1 and max(self._world.everyone(time.monotonic() - begin)) > PATIENCE:
                        break
                self._announce("verify again")
                again = trial.verify_again().findings
                found += Verification(tuple(f.named(f"{f.tensor} after timing") for f in again))
            except WrongResultError as error:
                found += error.found
        fields["findings"] = tuple(map(asdict, found.findings))
        if not found.passed:
            fields |= {name: times[name] for name in ("peak_bytes", "gpu") if name in times}
            return Result(Status.WRONG, "; ".join(map(str, found.failures)), fields)
        doubt = trial.suspicion()
        status = Status.SUSPECT if doubt else Status.OK
        return Result(status, doubt, {**fields, **times} if self._world.rank == 0 else {})

    def _planned(self, task: Task) -> Trial:
        """The trial of a case. The plan is made before its worker gets inputs, so it can compute nothing with them.

        Kernels of one mask share inputs and sampled heads, which are drawn after the first kernel's plan.
        """
        problem = task.case.problem(self._device)
        make = self._planned_here if task.sharing is None else self._planned_on_ranks
        return make(task, problem)

    def _planned_here(self, task: Task, problem: Problem) -> Trial:
        kernel = RemoteKernel(self._instruments.workers, task.case.kernel, task.distributions)
        self._announce("load")
        kernel.load()
        self._announce("plan")
        plan = kernel.plan(problem)
        if plan.form_text != task.form:
            message = f"the plan's form is {plan.form_text}; the offer that covers the problem takes {task.form}"
            raise CaseEndError(Status.WRONG, message)
        return KernelTrial(kernel, plan, task, self._shared(task, problem), self._instruments)

    def _planned_on_ranks(self, task: Task, problem: Problem) -> Trial:
        # Only ranks import torch.distributed.
        from longca_bench.measuring.remote_strategy import RemoteStrategy
        from longca_bench.measuring.strategy_trial import StrategyTrial

        strategy = RemoteStrategy(self._instruments, task)
        self._announce("load")
        strategy.load()
        self._announce("plan")
        plan = strategy.plan(problem)
        return StrategyTrial(strategy, plan, task, self._shared(task, problem), self._instruments)

    def _shared(self, task: Task, problem: Problem) -> SharedInputs:
        """The inputs and the reference of a case."""
        self._announce("inputs")
        if not self._inputs.has(task.case):
            self._inputs.drop()
            self._instruments.workers.trim()
        shared = self._inputs.of(task.case, problem)
        self._instruments.world.give_back()
        return shared

    def _verified(self, trial: Trial) -> tuple[Verification, dict[str, Any]]:
        """The verification before timing, and the fields that are known by then."""
        self._announce("verify")
        found, seconds = self._instruments.clocked(trial.verify)
        if trial.is_forward and found.passed:
            found += trial.check_counts()
        return found, {**trial.fields, "first_seconds": max(self._world.everyone(seconds))}

    def _timed(self, trial: Trial) -> dict[str, Any]:
        """The times, and what belongs to them."""
        self._announce("time")
        before, peaks = trial.before_timing(), trial.peaks()
        timing, machine = quietly(
            lambda: take_samples(trial.sample, self._world, self._instruments.budget, trial.inspect),
            self._world,
            (os.getppid(),),  # the runner waits for this process
            self._wait_idle,
        )
        wall = trial.wall(timing)
        gpu = gpu_state(process_tree((os.getppid(),))) if self._device.kind == "cuda" else None
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
