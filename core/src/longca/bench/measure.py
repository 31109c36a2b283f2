"""Measuring one case: plan, verify, and only then time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from longca.bench.cases import Case
from longca.bench.inputs import Inputs, draw_inputs
from longca.bench.reference import Reference, reference
from longca.bench.timing import Timing, time_calls
from longca.bench.verify import Verification, check_backward, check_counts, check_forward
from longca.kernels.base import Kernel, Plan, torch_device
from longca.manifests import Device, Problem

__all__ = ["BUDGET", "Bench", "Measurement"]

#: Seconds of samples a case.
BUDGET = 0.25


@dataclass(frozen=True)
class Measurement:
    """What a case gave beyond its status."""

    plan: Plan
    plan_seconds: float
    verification: Verification
    timing: Timing | None
    peak_bytes: int | None

    def fields(self) -> dict[str, Any]:
        """The record's fields that come from the measurement."""
        timing = self.timing
        return {
            "form": str(self.plan.form),
            "backend": self.plan.backend,
            "plan_seconds": self.plan_seconds,
            "metadata_bytes": self.plan.metadata_bytes,
            "peak_bytes": self.peak_bytes,
            "samples": timing.samples if timing else (),
            "warm_up": timing.warm_up if timing else (),
            "median": timing.median if timing else None,
            "tflops": self.plan.problem.flops / timing.median / 1e12 if timing else None,
            "findings": tuple(asdict(finding) for finding in self.verification.findings),
        }


class Bench:
    """Measures cases; keeps the inputs and the reference that the cases of one shape share.

    Args:
        device: What it measures on.
        with_backward: Whether references need gradients.
        budget: Seconds of samples a case.
    """

    def __init__(self, device: Device, *, with_backward: bool, budget: float = BUDGET) -> None:
        self.device, self.with_backward, self.budget = device, with_backward, budget
        self._shared: tuple[Any, Inputs, Reference] | None = None

    def measure(self, case: Case, kernel: Kernel) -> Measurement:
        """Verifies a kernel on a case, and times it where it is right."""
        problem = case.problem(self.device)
        inputs, expected = self._inputs(case, problem)
        plan, plan_seconds = self._plan(kernel, problem)
        verification, out, lse = check_forward(kernel, plan, inputs, expected)
        call: Callable[[], object]
        if case.direction == "forward":
            verification += check_counts(kernel, plan, inputs)
            call = lambda: kernel.forward(inputs.q, inputs.k, inputs.v, plan)  # noqa: E731
        else:
            verification += check_backward(kernel, plan, inputs, out, lse, expected)
            call = lambda: kernel.backward(inputs.dout, inputs.q, inputs.k, inputs.v, out, lse, plan)  # noqa: E731
        if not verification.passed:
            return Measurement(plan, plan_seconds, verification, None, None)
        timing, peak = self._time(call)
        return Measurement(plan, plan_seconds, verification, timing, peak)

    def _inputs(self, case: Case, problem: Problem) -> tuple[Inputs, Reference]:
        shape = (case.mask.key, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype)
        if self._shared is None or self._shared[0] != shape:
            inputs = draw_inputs(problem, case.seed)
            widest = Problem(
                mask=problem.mask,
                heads_q=problem.heads_q,
                heads_kv=problem.heads_kv,
                head_dim=problem.head_dim,
                dtype=problem.dtype,
                device=problem.device,
                direction="backward" if self.with_backward else "forward",
            )
            self._shared = shape, inputs, reference(widest, inputs)
        return self._shared[1:]

    def _plan(self, kernel: Kernel, problem: Problem) -> tuple[Plan, float]:
        start = time.perf_counter()
        plan = kernel.plan(problem)
        self._synchronize()
        return plan, time.perf_counter() - start

    def _time(self, call: Callable[[], object]) -> tuple[Timing, int | None]:
        device = torch_device(self.device)
        if device.type != "cuda":
            return time_calls(call, device, self.budget), None
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        self._synchronize()
        peak = torch.cuda.max_memory_allocated(device) - before
        return time_calls(call, device, self.budget), peak

    def _synchronize(self) -> None:
        if self.device.kind == "cuda":
            torch.cuda.synchronize()
