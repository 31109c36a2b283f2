"""Alone: the kernel on one device, without a strategy. A strategy's errors and times are compared with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from longca.kernels.base import Kernel
from longca.manifests import Problem
from longca_bench.measuring.shares import Share
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.verify import Finding, check_backward, check_forward

__all__ = ["Alone", "equal_share", "lone_call", "verify_alone"]


@dataclass(frozen=True)
class Alone:
    """Errors and times of a kernel on one device.

    Attributes:
        findings: The worst row of each tensor. Empty if the kernel does not take the whole mask.
        seconds: Median time of one rank's share of the heads, while the other ranks wait. None if the heads do not
            divide among the ranks.
        abreast: Median time on the slowest rank when all ranks do this at once. None in the same case.
        ranks_abreast: Each rank's own median of that. Empty in the same case.
    """

    findings: tuple[Finding, ...] = ()
    seconds: float | None = None
    abreast: float | None = None
    ranks_abreast: tuple[float, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The fields of the record."""
        return {
            "alone_seconds": self.seconds,
            "abreast_seconds": self.abreast,
            "rank_abreast_seconds": self.ranks_abreast,
            "alone_findings": tuple(map(asdict, self.findings)),
        }


def verify_alone(
    kernel: Kernel, problem: Problem, inputs: Inputs, expected: Reference, *, rough_lse: bool
) -> tuple[Finding, ...]:
    """Verifies a kernel's output, or its gradients if the direction is `backward`.

    Args:
        kernel: The kernel. It takes the problem.
        problem: The problem.
        inputs: The problem's tensors.
        expected: The problem's reference.
        rough_lse: Whether the offer that covers the problem calls its log-sum-exp rough.
    """
    plan = kernel.plan(problem)
    found, out, lse = check_forward(kernel, plan, inputs, expected, rough_lse=rough_lse)
    if problem.direction == "forward":
        return found.findings
    return check_backward(kernel, plan, inputs, out, lse, expected).findings


def equal_share(problem: Problem, ranks: int) -> Share | None:
    """The first of `ranks` equal parts of the query heads, with their KV heads, or None without such parts."""
    if problem.heads_q % ranks:
        return None
    heads_q = problem.heads_q // ranks
    group = problem.heads_q // problem.num_heads_kv
    if heads_q % group and group % heads_q:
        return None
    return Share((0, heads_q), (0, max(1, heads_q // group)))


def lone_call(kernel: Kernel, problem: Problem, inputs: Inputs) -> Callable[[], object]:
    """A kernel's call in the problem's direction. Before a backward, the forward is run here.

    Args:
        kernel: The kernel. It takes the problem.
        problem: The problem.
        inputs: The problem's tensors.
    """
    plan, x = kernel.plan(problem), inputs
    if problem.direction == "forward":
        return partial(kernel.forward, x.q, x.k, x.v, plan)
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    return partial(kernel.backward, x.dout, x.q, x.k, x.v, out, lse, plan)
