"""The trial of a kernel on one device. Every timed result is inspected."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from longca.kernels.base import Kernel, Plan
from longca.manifests import Problem
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.timing import Timing, wall_times
from longca_bench.measuring.trial import Trial
from longca_bench.suites.tasks import Task
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.verify import (
    Finding,
    Verification,
    check_backward,
    check_counts,
    check_forward,
    check_values,
)

__all__ = ["KernelTrial"]


class KernelTrial(Trial):
    """A kernel on one set of tensors.

    Args:
        kernel: The kernel.
        plan: The kernel's plan of the problem.
        inputs: The tensors. No other trial uses their memory.
        expected: The reference.
        rough_lse: Whether the offer that covers the problem calls its log-sum-exp rough.
        instruments: The instruments.
    """

    expected: Reference

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        inputs: Inputs,
        expected: Reference,
        *,
        rough_lse: bool,
        instruments: Instruments,
    ) -> None:
        super().__init__(plan.problem, inputs, expected)
        self._kernel, self._plan, self._rough_lse, self._instruments = kernel, plan, rough_lse, instruments
        self._forward: tuple[Tensor, Tensor] | None = None
        self._wrong: list[Finding] = []
        self.fields = {"form": plan.form_text, "backend": plan.backend, "metadata_bytes": plan.metadata_bytes}

    @classmethod
    def planned(
        cls, task: Task, kernel: Kernel, problem: Problem, shared: SharedInputs, instruments: Instruments
    ) -> KernelTrial:
        """Plans a case.

        Args:
            task: The case.
            kernel: Its kernel.
            problem: Its problem.
            shared: The inputs and the reference that cases share.
            instruments: The instruments.
        """
        rough_lse = instruments.registry.resolve(task.case.kernel, problem).rough_lse
        plan, seconds = instruments.clocked(lambda: kernel.plan(problem))
        assert shared.expected is not None, "one device verifies heads"
        # Each trial has tensors of its own, so that no kernel gets the address of another kernel's inputs.
        inputs = shared.inputs.clone()
        trial = cls(kernel, plan, inputs, shared.expected, rough_lse=rough_lse, instruments=instruments)
        trial.fields["plan_seconds"] = seconds
        return trial

    def verify(self) -> Verification:
        """Verifies results in poisoned buffers, and that the kernel leaves its inputs alone."""
        found, out, lse = check_forward(self._kernel, self._plan, self.inputs, self.expected, rough_lse=self._rough_lse)
        self._forward = out, lse
        if not self.is_forward:
            found += check_backward(self._kernel, self._plan, self.inputs, out, lse, self.expected)
        return found

    def check_counts(self) -> Verification:
        """Verifies the counts of visible keys."""
        return check_counts(self._kernel, self._plan, self.inputs)

    def call(self) -> tuple[Tensor, ...]:
        """The kernel's own call."""
        x = self.inputs
        if self.is_forward:
            return self._kernel.forward(x.q, x.k, x.v, self._plan)
        assert self._forward is not None, "a trial is verified before it is called"
        return self._kernel.backward(x.dout, x.q, x.k, x.v, *self._forward, self._plan)

    def inspect(self, results: tuple[Tensor, ...]) -> None:
        """Notes the errors in the results of a timed call."""
        names = ("out",) if self.is_forward else ("dq", "dk", "dv")
        self._wrong.extend(check_values(dict(zip(names, results, strict=False)), self.expected).failures)

    def check_timed(self, last: Any) -> Verification:
        """The first error of the timed calls."""
        return Verification(tuple(self._wrong[:1]))

    def wall(self, timing: Timing) -> tuple[float, ...]:
        """The times by the host's clock."""
        return wall_times(self.call, self._instruments.world, timing)
