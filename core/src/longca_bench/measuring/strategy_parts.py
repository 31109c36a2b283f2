"""The parts of a strategy's time, and the baseline with which its errors and times are compared.

The baseline is the kernel on one device, without a strategy. The parts are the kernel's calls without communication,
and the communication without the kernel's calls. All ranks call these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import Tensor

from longca.kernels.base import Kernel
from longca.manifests import Direction, Problem
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.commands import ALL, COMPUTE, WHOLE, Mode, Traffic
from longca_bench.measuring.messages import COMPUTING
from longca_bench.measuring.remote_kernel import RemoteKernel, arguments_of
from longca_bench.measuring.remote_strategy import RemoteStrategy, agreed
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.shares import SharedInputs, numbered, worst
from longca_bench.measuring.statistics import Interval, median_interval
from longca_bench.measuring.timing import Timing, loading_calls, take_samples, take_turns
from longca_bench.measuring.world import Instruments, World
from longca_bench.suites.case import Case
from longca_bench.verification.change import Change
from longca_bench.verification.findings import INCOMPLETE, Finding, is_complete
from longca_bench.verification.head_sample import HeadSample
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.verify import Means, check_backward, check_forward

__all__ = [
    "computing_and_communication",
    "equal_share",
    "measure_communication",
    "single_gpu_baseline",
    "verify_baseline",
]

#: Share of the budget of samples that each part gets, computing and communication by themselves. On GPUs loading calls
#: come before each call, so that samples of parts would take longer than those of the whole.
_PARTS = 0.2


def single_gpu_baseline(
    case: Case, problem: Problem, strategy: RemoteStrategy, shared: SharedInputs, instruments: Instruments
) -> dict[str, Any]:
    """The fields of the record about the kernel without a strategy. They are measured once for all strategies.

    `alone` is the median time of one rank's share of the heads, while the other ranks wait, and `abreast` that on the
    slowest rank when all do this at once. There is none if the heads do not divide among the ranks, and no finding if
    the kernel does not take the whole mask. A kernel that is wrong on some rank, or ended this rank's worker, is a
    CaseEndError.
    """
    key = case.kernel, case.direction
    if key not in shared.kept:
        shared.kept[key] = _measured_baseline(problem, strategy, shared, instruments)
    found: dict[str, Any] = shared.kept[key]
    return found


def _measured_baseline(
    problem: Problem, strategy: RemoteStrategy, shared: SharedInputs, instruments: Instruments
) -> dict[str, Any]:
    world, announce, budget = instruments.world, instruments.announce, instruments.budget
    fields: dict[str, Any] = {
        "alone_seconds": None,
        "abreast_seconds": None,
        "rank_abreast_seconds": (),
        "alone_findings": (),
    }
    if not strategy.sharing.takes_whole:
        return fields
    share = shared.shares[world.rank]

    def verified() -> list[Finding]:
        """The findings on this rank's heads."""
        if shared.expected is None:
            return []
        about = strategy.kernel, share.problem(problem), shared.mine, shared.expected
        return [numbered(each, share) for each in verify_baseline(*about, rough_lse=strategy.sharing.rough_alone)]

    announce(f"{COMPUTING} alone")
    found = agreed(world, verified, lambda: announce("alone"))
    fields["alone_findings"] = tuple(map(asdict, worst(world.everyone(found, list[Finding]))))
    part = equal_share(problem, world.size)
    if part is None:
        return fields
    about = strategy.kernel, part.problem(problem), part.inputs(shared.inputs), instruments.workers.arena
    calls = agreed(world, lambda: _BaselineCalls(*about))
    seconds = None
    if world.rank == 0:  # the other ranks wait, so it has the machine to itself
        announce(f"{COMPUTING} alone")
        seconds = take_samples(calls.sample, World(world.device), budget).median
        announce("alone")
    seconds = world.everyone(seconds)[0]
    abreast = take_samples(partial(calls.sample, abreast=True), world, budget)
    agreed(world, calls.check)
    times = {"abreast_seconds": abreast.median, "rank_abreast_seconds": abreast.rank_medians}
    return {**fields, "alone_seconds": seconds, **times}


def verify_baseline(
    kernel: Kernel, problem: Problem, inputs: Inputs, expected: Reference, *, rough_lse: bool
) -> tuple[Finding, ...]:
    """The findings of a kernel's output, or of its gradients if the direction is `backward`."""
    plan = kernel.plan(problem)
    change = Change.first(problem)
    mine, means = change.made_all(inputs), Means.here(inputs.q, change)
    found, out, lse = check_forward(kernel, plan, mine, expected, means, rough_lse=rough_lse)
    if problem.direction == "forward":
        return found.findings
    return check_backward(kernel, plan, mine, out, lse, expected, means).findings


def equal_share(problem: Problem, ranks: int) -> HeadSample | None:
    """The first of `ranks` equal parts of the query heads, with their KV heads, or None without such parts."""
    if problem.heads_q % ranks:
        return None
    heads_q = problem.heads_q // ranks
    group = problem.heads_q // problem.num_heads_kv
    if heads_q % group and group % heads_q:
        return None
    return HeadSample(tuple(range(max(1, heads_q // group))), tuple(range(heads_q)))


class _BaselineCalls:
    """Timed calls of a verified kernel in the problem's direction. Inputs change between calls."""

    def __init__(self, kernel: RemoteKernel, problem: Problem, inputs: Inputs, arena: Arena) -> None:
        self.fault, self._last = "", 0.0
        self._kernel, self._problem, self._given = kernel, problem, inputs
        self._mine = Inputs(*(arena.like(x) for x in (inputs.q, inputs.k, inputs.v, inputs.dout)))
        self._plan, self._change = kernel.plan(problem), Change.first(problem)
        self._change.apply(inputs, self._mine)
        tensors = arguments_of(Direction.FORWARD, self._mine, {})
        self._forward = kernel.run(Direction.FORWARD, tensors, self._plan).results
        self._verified = {name: self._change.undo(name, result) for name, result in self._forward.items()}

    def sample(self, *, abreast: bool = False) -> tuple[float, None]:
        """The seconds of a call. Calls of all ranks begin together if they are `abreast`."""
        direction, times = self._problem.direction, loading_calls(self._last)
        try:
            if times and self._mine.q.device.type == "cuda":  # before the change, as for a strategy
                self._kernel.run(direction, self._tensors(), self._plan, mode=Mode.LOAD, times=times)
            self._change = Change.draw(self._problem, self._change)
            self._change.apply(self._given, self._mine)
            for name, verified in self._verified.items():
                self._change.write(name, verified, self._forward[name])
            ran = self._kernel.run(direction, self._tensors(), self._plan, mode=Mode.TIMED, abreast=abreast)
            if not all(is_complete(name, result) for name, result in ran.results.items() if name != "lse"):
                self.fault = self.fault or f"a result: {INCOMPLETE}"
        except ContractError as error:
            self.fault = self.fault or str(error)
            return 0.0, None
        self._last = min(ran.reply.sample, ran.reply.seconds)
        return self._last, None

    def check(self) -> None:
        """Raises a ContractError if a call was wrong."""
        if self.fault:
            raise ContractError({"the kernel alone": self.fault})

    def _tensors(self) -> dict[str, Tensor]:
        return arguments_of(self._problem.direction, self._mine, self._forward)


def computing_and_communication(
    strategy: RemoteStrategy, traffic: Mapping[str, Traffic], instruments: Instruments
) -> dict[str, Any]:
    """The fields of the record about computing and communication, of a call whose parts the worker has noted.

    The whole call, its computing and its communication take turns, so that all of them meet the same clocks.
    """
    world, budget = instruments.world, _PARTS * instruments.budget
    sent = world.everyone({kind: each.sent for kind, each in traffic.items()})
    kinds = sorted({kind for each in sent for kind in each})
    names = (WHOLE, COMPUTE, *([ALL] if kinds else ()))
    turns = take_turns({name: partial(strategy.repeat, name) for name in names}, world, budget)

    def timed(kind: str) -> Timing:
        if kind == ALL or len(kinds) == 1:
            return turns[ALL]
        return take_samples(partial(strategy.repeat, kind), world, budget)

    compute = turns[COMPUTE]
    busiest = max(compute.rank_medians)
    hidden = _hidden(turns)
    return {
        "sent_bytes": {kind: tuple(each.get(kind, 0) for each in sent) for kind in kinds},
        "communication": measure_communication(traffic, world, timed),
        "rank_compute_seconds": compute.rank_medians,
        "time_imbalance": busiest * world.size / sum(compute.rank_medians) if busiest else 1.0,
        "hidden": hidden.value if hidden is not None and hidden.high - hidden.low < 1 else None,
        "hidden_interval": None if hidden is None else (hidden.low, hidden.high),
    }


def _hidden(turns: Mapping[str, Timing]) -> Interval | None:
    """The share of the communication's time that the whole does not take beyond computing, from the rounds of turns.

    It and the ends of its interval are cut to 0 and 1. None without communication, and where computing alone takes
    longer than the whole: the parts then met another machine than the whole did.
    """
    if ALL not in turns or turns[COMPUTE].median > turns[WHOLE].median:
        return None
    rounds = zip(*(turns[name].samples for name in (WHOLE, COMPUTE, ALL)), strict=True)
    found = median_interval([(alone + compute - whole) / alone for whole, compute, alone in rounds])
    return Interval(*(min(1.0, max(0.0, each)) for each in (found.value, found.low, found.high)))


def measure_communication(
    traffic: Mapping[str, Traffic], world: World, timed: Callable[[str], Timing]
) -> dict[str, dict[str, int | float]]:
    """The time and bandwidths of collectives, by kind and all together. All ranks call this.

    algbw is bytes over seconds. busbw is the bytes that each rank sends over seconds, so it does not depend on the
    number of ranks. Bytes are those of the rank with the most bytes, because shards can differ.
    """
    everyones = world.everyone(dict(traffic), dict[str, Traffic])
    kinds = sorted({kind for each in everyones for kind in each})
    whole = [each | {ALL: sum(each.values(), Traffic())} for each in everyones]
    found = {kind: _measured([each.get(kind, Traffic()) for each in whole], timed(kind)) for kind in kinds}
    if len(kinds) > 1:
        found[ALL] = _measured([each[ALL] for each in whole], timed(ALL))
    elif kinds:
        found[ALL] = found[kinds[0]]
    return found


def _measured(everyones: list[Traffic], timing: Timing) -> dict[str, int | float]:
    size, sent, calls = (max(getattr(each, name) for each in everyones) for name in ("size", "sent", "calls"))
    rate = 1e-9 / timing.median
    return {"calls": calls, "bytes": size, "seconds": timing.median, "algbw": size * rate, "busbw": sent * rate}
