"""The parts of a strategy's time, measured on their own. All ranks call these functions.

The parts are the kernel alone on one device, the kernel's calls without communication, and the communication without
the kernel's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from longca.manifests import Problem
from longca_bench.measuring.commands import ALL, COMPUTE, WHOLE, Part, Traffic
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.messages import COMPUTING
from longca_bench.measuring.remote_strategy import RemoteStrategy, agreed
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import worst
from longca_bench.measuring.single_gpu_baseline import Alone, LoneCalls, equal_share, verify_alone
from longca_bench.measuring.statistics import Interval, median_interval
from longca_bench.measuring.timing import Timing, take_samples, take_turns
from longca_bench.measuring.world import World
from longca_bench.suites.case import Case
from longca_bench.verification.findings import Finding

__all__ = ["computing_and_communication", "kernel_alone", "measure_communication"]

#: Share of the budget of samples that each part gets, computing and communication by themselves. On GPUs loading calls
#: come before each call, so that samples of parts would take longer than those of the whole.
_PARTS = 0.2


def kernel_alone(
    case: Case, problem: Problem, strategy: RemoteStrategy, shared: SharedInputs, instruments: Instruments
) -> Alone:
    """Errors and times of the kernel without a strategy, measured once for all strategies.

    Args:
        case: The case.
        problem: Its problem.
        strategy: The strategy, whose worker has the kernel.
        shared: The inputs and the reference. They keep the result for the next case.
        instruments: The instruments of this rank.

    Raises:
        CaseEndError: The kernel is wrong on some rank, or ended this rank's worker.
    """
    key = case.kernel, case.direction
    if key not in shared.kept:
        shared.kept[key] = _measured_alone(problem, strategy, shared, instruments)
    found: Alone = shared.kept[key]
    return found


def _measured_alone(
    problem: Problem, strategy: RemoteStrategy, shared: SharedInputs, instruments: Instruments
) -> Alone:
    world, announce, budget = instruments.world, instruments.announce, instruments.budget
    if not strategy.sharing.takes_whole:
        return Alone()
    findings = worst(world.everyone(_findings_alone(problem, strategy, shared, instruments), list[Finding]))
    part = equal_share(problem, world.size)
    if part is None:
        return Alone(findings)
    about = strategy.kernel, part.problem(problem), part.inputs(shared.inputs), instruments.workers.arena
    calls = agreed(world, lambda: LoneCalls(*about, rough_lse=strategy.sharing.rough_alone))
    seconds = None
    if world.rank == 0:  # the other ranks wait, so it has the machine to itself
        announce(f"{COMPUTING} alone")
        seconds = take_samples(calls.sample, World(world.device), budget).median
        announce("alone")
    seconds = world.everyone(seconds)[0]
    abreast = take_samples(partial(calls.sample, abreast=True), world, budget)
    agreed(world, calls.check)
    return Alone(findings, seconds, abreast.median, abreast.rank_medians)


def _findings_alone(
    problem: Problem, strategy: RemoteStrategy, shared: SharedInputs, instruments: Instruments
) -> list[Finding]:
    """The findings of the kernel on this rank's heads."""
    share = shared.shares[instruments.world.rank]

    def verified() -> list[Finding]:
        if shared.expected is None:
            return []
        about = strategy.kernel, share.problem(problem), shared.mine, shared.expected
        return [share.named(each) for each in verify_alone(*about, rough_lse=strategy.sharing.rough_alone)]

    instruments.announce(f"{COMPUTING} alone")
    return agreed(instruments.world, verified, lambda: instruments.announce("alone"))


def computing_and_communication(
    strategy: RemoteStrategy, record: Callable[[Part], dict[str, Traffic]], instruments: Instruments
) -> dict[str, Any]:
    """The fields of the record about computing and communication.

    The whole call, its computing and its communication take turns, so that all of them meet the same clocks.

    Args:
        strategy: The strategy.
        record: Makes the strategy's worker note a part of a call, and returns the collectives.
        instruments: The instruments of this rank.
    """
    world, announce, budget = instruments.world, instruments.announce, _PARTS * instruments.budget
    announce("compute")
    record(Part.COMPUTING)
    announce("communication")
    traffic = record(Part.COMMUNICATION)
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

    Args:
        traffic: This rank's collectives, by kind.
        world: The ranks.
        timed: Times the collectives of a kind, or of all kinds.
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
