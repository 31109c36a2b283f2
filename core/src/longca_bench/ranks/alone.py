"""Alone: the kernel without a strategy, on one device. What a strategy's errors and times are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from longca.kernels.base import Kernel
from longca.manifests import Problem
from longca_bench.ranks.shares import Share
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.verify import Finding, check_backward, check_forward

__all__ = ["Alone", "equal_share", "lone_call", "verify_alone"]


@dataclass(frozen=True)
class Alone:
    """A kernel on one device.

    Attributes:
        findings: The worst row of each tensor; empty where the kernel does not take the mask whole.
        seconds: Median time of one rank's share of the heads, while the other ranks wait; None where they do not
            divide, as are those that follow.
        abreast: Median time of the slowest rank where all do that, each for itself.
        ranks_abreast: Each rank's own median then.
    """

    findings: tuple[Finding, ...] = ()
    seconds: float | None = None
    abreast: float | None = None
    ranks_abreast: tuple[float, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The record's fields."""
        return {
            "alone_seconds": self.seconds,
            "abreast_seconds": self.abreast,
            "rank_abreast_seconds": self.ranks_abreast,
            "alone_findings": tuple(map(asdict, self.findings)),
        }


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


def lone_call(kernel: Kernel, problem: Problem, inputs: Inputs) -> Callable[[], object]:
    """A kernel's call in the problem's direction; of a backward the forward is over.

    Args:
        kernel: The kernel, which takes the problem.
        problem: What is asked.
        inputs: Its tensors.
    """
    plan, x = kernel.plan(problem), inputs
    if problem.direction == "forward":
        return partial(kernel.forward, x.q, x.k, x.v, plan)
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    return partial(kernel.backward, x.dout, x.q, x.k, x.v, out, lse, plan)
