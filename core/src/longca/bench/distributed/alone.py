"""Alone: the kernel without a strategy, on one device. What a strategy's errors and times are held against."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from longca.bench.distributed.shares import Share
from longca.bench.inputs import Inputs
from longca.bench.reference import Reference
from longca.bench.timing import time_calls
from longca.bench.verify import Finding, check_backward, check_forward
from longca.kernels.base import Kernel, torch_device
from longca.manifests import Problem

__all__ = ["Alone", "equal_share", "time_alone", "verify_alone"]


@dataclass(frozen=True)
class Alone:
    """A kernel on one device.

    Attributes:
        findings: The worst row of each tensor; empty where the kernel does not take the mask whole.
        seconds: Median time of one rank's share of the heads; None where they do not divide.
    """

    findings: tuple[Finding, ...]
    seconds: float | None

    def fields(self) -> dict[str, Any]:
        """The record's fields."""
        return {"alone_seconds": self.seconds, "alone_findings": tuple(map(asdict, self.findings))}


def verify_alone(
    kernel: Kernel, problem: Problem, inputs: Inputs, expected: Reference, *, rough_lse: bool
) -> tuple[Finding, ...]:
    """What is found of a kernel's output, or of its gradients where the direction is `backward`.

    Args:
        kernel: The kernel, which takes the problem.
        problem: What is asked.
        inputs: Its tensors.
        expected: Its reference.
        rough_lse: What the offer that covers the problem says of its log-sum-exp.
    """
    plan = kernel.plan(problem)
    found, out, lse = check_forward(kernel, plan, inputs, expected, rough_lse=rough_lse)
    if problem.direction == "forward":
        return found.findings
    return check_backward(kernel, plan, inputs, out, lse, expected).findings


def equal_share(problem: Problem, ranks: int) -> Share | None:
    """The first of as many equal parts of the query heads, with the KV heads they need; None where there are none."""
    if problem.heads_q % ranks:
        return None
    heads_q = problem.heads_q // ranks
    group = problem.heads_q // problem.num_heads_kv
    if heads_q % group and group % heads_q:
        return None
    return Share((0, heads_q), (0, max(1, heads_q // group)))


def time_alone(kernel: Kernel, problem: Problem, inputs: Inputs, budget: float) -> float:
    """Median seconds of a kernel's calls in the problem's direction.

    Args:
        kernel: The kernel, which takes the problem.
        problem: What is asked.
        inputs: Its tensors.
        budget: Seconds to sample for.
    """
    plan, x = kernel.plan(problem), inputs
    out, lse = kernel.forward(x.q, x.k, x.v, plan)

    def call() -> object:
        if problem.direction == "forward":
            return kernel.forward(x.q, x.k, x.v, plan)
        return kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)

    return time_calls(call, torch_device(problem.device), budget).median
