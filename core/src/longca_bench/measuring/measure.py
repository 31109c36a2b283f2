"""Measuring one case: plan, verify, and only then time, looking at every timed result; and verify again.

The second verification is on the same tensors with v negated in place. Attention is linear in v, so the references are
known without computing them: out and dv change sign or not, as the algebra says. A kernel that keeps an answer by the
address of its inputs is found out by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from longca.kernels.base import Kernel, Plan, torch_device
from longca.manifests import Device, Problem
from longca_bench.measuring.gpu_state import gpu_state
from longca_bench.measuring.timing import Timing, time_calls
from longca_bench.suites.cases import Case
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import Reference, reference
from longca_bench.verification.verify import (
    Finding,
    Verification,
    check_backward,
    check_counts,
    check_forward,
    check_values,
)

_T = TypeVar("_T")

__all__ = ["BUDGET", "Bench", "Measurement"]

#: Seconds of samples a case.
BUDGET = 0.25


@dataclass(frozen=True)
class Measurement:
    """What a case gave beyond its status.

    Attributes:
        plan: The kernel's plan.
        plan_seconds: Time that planning took.
        first_seconds: Time of the first call: what compiling takes, and one call.
        verification: What was found, of all looks at the result.
        timing: The samples; None where the result was wrong.
        peak_bytes: The allocator's peak above the inputs; None on CPUs.
        gpu: The GPU's state right after timing; None on CPUs.
        verified_kv_heads: KV heads that were verified, with their query heads; None for all.
    """

    plan: Plan
    plan_seconds: float
    first_seconds: float
    verification: Verification
    timing: Timing | None = None
    peak_bytes: int | None = None
    gpu: dict[str, Any] | None = None
    verified_kv_heads: tuple[int, ...] | None = None

    def fields(self) -> dict[str, Any]:
        """The record's fields that come from the measurement."""
        timing = self.timing if self.verification.passed else None
        return {
            "form": self.plan.form_text,
            "backend": self.plan.backend,
            "plan_seconds": self.plan_seconds,
            "first_seconds": self.first_seconds,
            "metadata_bytes": self.plan.metadata_bytes,
            "peak_bytes": self.peak_bytes,
            "samples": timing.samples if timing else (),
            "wall": timing.wall if timing else (),
            "warm_up": timing.warm_up if timing else (),
            "median": timing.median if timing else None,
            "tflops": self.plan.problem.flops / timing.median / 1e12 if timing else None,
            "gpu": self.gpu,
            "verified_kv_heads": self.verified_kv_heads,
            "findings": tuple(asdict(finding) for finding in self.verification.findings),
        }


@dataclass(frozen=True)
class _Work:
    """A case made ready: one kernel on one set of tensors."""

    kernel: Kernel
    plan: Plan
    inputs: Inputs
    expected: Reference
    rough_lse: bool

    @property
    def is_forward(self) -> bool:
        return self.plan.problem.direction == "forward"

    def verify(self) -> tuple[Verification, Tensor, Tensor]:
        """Verifies the direction; also returns the forward's out and lse."""
        found, out, lse = check_forward(self.kernel, self.plan, self.inputs, self.expected, rough_lse=self.rough_lse)
        if not self.is_forward:
            found += check_backward(self.kernel, self.plan, self.inputs, out, lse, self.expected)
        return found, out, lse

    def call(self, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        """The work that is timed."""
        x = self.inputs
        if self.is_forward:
            return self.kernel.forward(x.q, x.k, x.v, self.plan)
        return self.kernel.backward(x.dout, x.q, x.k, x.v, out, lse, self.plan)

    def inspect(self, results: tuple[Tensor, ...]) -> list[Finding]:
        """What is wrong with the results of a timed call."""
        names = ("out",) if self.is_forward else ("dq", "dk", "dv")
        return list(check_values(dict(zip(names, results, strict=False)), self.expected).failures)

    def negated(self) -> _Work:
        """The same work with v negated, in the same memory."""
        self.inputs.v.neg_()
        changed = {"out", "dq", "dk"}
        rows = {
            name: replace(row, value=-row.value) if name in changed else row for name, row in self.expected.rows.items()
        }
        return replace(self, expected=replace(self.expected, rows=rows))


class Bench:
    """Measures cases; keeps the inputs and the reference that the cases of one shape share.

    Args:
        device: What it measures on.
        with_backward: Lengths whose references need gradients.
        budget: Seconds of samples a case.
        announce: Told which phase a case is in.
    """

    def __init__(
        self,
        device: Device,
        *,
        with_backward: Container[int],
        budget: float = BUDGET,
        announce: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.device, self.with_backward, self.budget, self._announce = device, with_backward, budget, announce
        self._drawn: tuple[Any, Inputs] | None = None
        self._shared: tuple[Any, Inputs, Reference] | None = None

    def measure(self, case: Case, kernel: Kernel, *, rough_lse: bool = False) -> Measurement:
        """Verifies a kernel on a case, times it where it is right, and verifies it again.

        Args:
            case: The case.
            kernel: Its kernel.
            rough_lse: What the offer that covers the case says of its log-sum-exp.
        """
        problem = case.problem(self.device)
        self._announce("inputs")
        inputs, expected = self._inputs(case, problem)
        self._announce("plan")
        plan, plan_seconds = self._clocked(lambda: kernel.plan(problem))
        # Tensors of its own, so that no kernel is handed the address of another one's inputs.
        work = _Work(kernel, plan, inputs.clone(), expected, rough_lse)
        heads = None if expected.sample is None else expected.sample.heads_kv
        self._announce("verify")
        (found, out, lse), first_seconds = self._clocked(work.verify)
        if work.is_forward and found.passed:
            found += check_counts(kernel, plan, inputs)
        if not found.passed:
            return Measurement(plan, plan_seconds, first_seconds, found, verified_kv_heads=heads)
        self._announce("time")
        timing, peak, wrong = self._time(work, out, lse)
        gpu = gpu_state() if self.device.kind == "cuda" else None
        self._announce("verify again")
        again, _, _ = work.negated().verify()
        found += Verification(tuple(f.named(f"{f.tensor} of a timed call") for f in wrong))
        found += Verification(tuple(f.named(f"{f.tensor} after timing") for f in again.findings))
        kept = timing if found.passed else None
        return Measurement(plan, plan_seconds, first_seconds, found, kept, peak, gpu, heads)

    def _inputs(self, case: Case, problem: Problem) -> tuple[Inputs, Reference]:
        shape = (case.mask.key, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype)
        if self._shared is None or self._shared[0] != shape:
            self._shared = None  # before there is another one, which may need its memory
            inputs = self._draw(case, problem)
            widest = replace(problem, direction="backward" if case.seqlen in self.with_backward else "forward")
            self._shared = shape, inputs, reference(widest, inputs)
        return self._shared[1:]

    def _draw(self, case: Case, problem: Problem) -> Inputs:
        """Inputs, which all masks of a length, seed and shape share: drawing many takes longer than attention."""
        about = (case.seqlen, *(getattr(case, name) for name in ("seed", "heads_q", "heads_kv", "head_dim", "dtype")))
        if self._drawn is None or self._drawn[0] != about:
            self._drawn = None
            self._drawn = about, draw_inputs(problem, case.seed)
        return self._drawn[1]

    def _clocked(self, call: Callable[[], _T]) -> tuple[_T, float]:
        self._synchronize()  # what the reference still has to do is no part of the call
        start = time.perf_counter()
        result = call()
        self._synchronize()
        return result, time.perf_counter() - start

    def _time(self, work: _Work, out: Tensor, lse: Tensor) -> tuple[Timing, int | None, list[Finding]]:
        """The samples, the peak of memory, and what was wrong with any timed result."""
        device, wrong = torch_device(self.device), list[Finding]()
        peak = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            work.call(out, lse)
            self._synchronize()
            peak = torch.cuda.max_memory_allocated(device) - before

        def inspect(results: Any) -> None:
            wrong.extend(work.inspect(results))

        timing = time_calls(lambda: work.call(out, lse), device, self.budget, inspect)
        return timing, peak, wrong[:1]

    def _synchronize(self) -> None:
        if self.device.kind == "cuda":
            torch.cuda.synchronize()
