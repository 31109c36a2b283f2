"""The baseline with which a strategy's errors and times are compared: the kernel on one device, without a strategy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from longca.kernels.base import Kernel
from longca.manifests import Direction, Problem
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.commands import Mode
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.results import NAMES, ContractError
from longca_bench.measuring.shares import Share
from longca_bench.measuring.timing import loading_calls
from longca_bench.verification.change import Change
from longca_bench.verification.findings import INCOMPLETE, Finding, is_complete, wrong
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.rows import Checksums
from longca_bench.verification.verify import Means, check_backward, check_forward

__all__ = ["Alone", "LoneCalls", "equal_share", "verify_alone"]


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
    change = Change.first(problem)
    mine, means = change.made_all(inputs), Means.here(inputs.q, change)
    found, out, lse = check_forward(kernel, plan, mine, expected, means, rough_lse=rough_lse)
    if problem.direction == "forward":
        return found.findings
    return check_backward(kernel, plan, mine, out, lse, expected, means).findings


def equal_share(problem: Problem, ranks: int) -> Share | None:
    """The first of `ranks` equal parts of the query heads, with their KV heads, or None without such parts."""
    if problem.heads_q % ranks:
        return None
    heads_q = problem.heads_q // ranks
    group = problem.heads_q // problem.num_heads_kv
    if heads_q % group and group % heads_q:
        return None
    return Share((0, heads_q), (0, max(1, heads_q // group)))


class LoneCalls:
    """Calls of a kernel in the problem's direction. Inputs change between calls, and results must change with them.

    Args:
        kernel: The kernel. It takes the problem.
        problem: The problem.
        inputs: The problem's tensors.
        arena: Memory that the kernel's worker can reach.
        rough_lse: Whether the kernel's offer calls its log-sum-exp rough.

    Attributes:
        fault: The error of the first wrong call, in a clause, or an empty text.

    Raises:
        ContractError: The first results break the contract.
    """

    def __init__(
        self, kernel: RemoteKernel, problem: Problem, inputs: Inputs, arena: Arena, *, rough_lse: bool
    ) -> None:
        self.fault, self._last = "", 0.0
        self._kernel, self._problem, self._given = kernel, problem, inputs
        self._mine = Inputs(*(arena.like(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout)))
        self._plan, self._checksums = kernel.plan(problem), Checksums(inputs.q.dtype, rough_lse=rough_lse)
        self._change = Change.first(problem)
        self._change.apply(inputs, self._mine)
        x = self._mine
        first = kernel.run(Direction.FORWARD, {"q": x.q, "k": x.k, "v": x.v}, self._plan).results
        self._forward = first
        self._verified = {name: self._change.undo(name, result) for name, result in first.items()}
        if problem.direction == "backward":
            first = kernel.run(problem.direction, self._tensors(), self._plan).results
        for name, result in first.items():
            self._checksums.keep(name, self._change.undo(name, result))

    def sample(self, *, abreast: bool = False) -> tuple[float, None]:
        """The seconds of a call. Its results are checked here.

        Args:
            abreast: Whether the calls of all ranks begin together.
        """
        try:
            self._load()
            self._change = Change.draw(self._problem, self._change)
            self._change.apply(self._given, self._mine)
            if self._problem.direction == "backward":
                for name in NAMES[Direction.FORWARD]:
                    self._change.write(name, self._verified[name], self._forward[name])
            about = self._problem.direction, self._tensors(), self._plan
            ran = self._kernel.run(*about, mode=Mode.TIMED, abreast=abreast)
            found = self._checksums.check(ran.results, self._change)
            if not all(is_complete(name, result) for name, result in ran.results.items() if name != "lse"):
                found = [wrong("a result", INCOMPLETE)]
            self.fault = self.fault or "".join(map(str, found[:1]))
        except ContractError as error:
            self.fault = self.fault or str(error)
            return 0.0, None
        self._last = min(ran.reply.sample, ran.reply.seconds)
        return self._last, None

    def check(self) -> None:
        """Checks that no call was wrong.

        Raises:
            ContractError: A call was wrong.
        """
        if self.fault:
            raise ContractError({"the kernel alone": self.fault})

    def _load(self) -> None:
        """Keeps a CUDA device as busy as calls in a row do. The inputs change only afterwards, as for a strategy."""
        times = loading_calls(self._last)
        if times and self._mine.q.device.type == "cuda":
            self._kernel.run(self._problem.direction, self._tensors(), self._plan, mode=Mode.LOAD, times=times)

    def _tensors(self) -> dict[str, Tensor]:
        x = self._mine
        tensors = {"q": x.q, "k": x.k, "v": x.v}
        return tensors if self._problem.direction == "forward" else {"dout": x.dout, **tensors, **self._forward}
