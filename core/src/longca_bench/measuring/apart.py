"""Apart: the parts of a strategy's time, measured on their own. All ranks call these functions.

The parts are the kernel alone on one device, the kernel's calls without communication, and the communication without
the kernel's calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longca.manifests import Problem
from longca_bench.measuring.alone import Alone, equal_share, lone_call, verify_alone
from longca_bench.measuring.communication import ALL, Bandwidth, measure_communication
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.messages import COMPUTING
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import worst
from longca_bench.measuring.timing import Timing, time_calls
from longca_bench.measuring.traffic import Collective, Recorder, sent_by_kind
from longca_bench.measuring.watched_kernel import Call, WatchedKernel
from longca_bench.measuring.world import World
from longca_bench.suites.cases import Case
from longca_bench.verification.verify import Finding

__all__ = ["computing_and_communication", "kernel_alone"]


def kernel_alone(case: Case, problem: Problem, shared: SharedInputs, instruments: Instruments) -> Alone:
    """Errors and times of the kernel without a strategy, measured once for all strategies.

    Args:
        case: The case.
        problem: Its problem.
        shared: The inputs and the reference. They keep the result for the next case.
        instruments: The instruments of this rank.
    """
    key = case.kernel, case.direction
    if key not in shared.kept:
        shared.kept[key] = _measured_alone(case, problem, shared, instruments)
    found: Alone = shared.kept[key]
    return found


def _measured_alone(case: Case, problem: Problem, shared: SharedInputs, instruments: Instruments) -> Alone:
    world, registry, announce = instruments.world, instruments.registry, instruments.announce
    kernel = registry.load(case.kernel)
    if not registry.resolve(case.kernel, problem):
        return Alone()
    findings = worst(world.everyone(_findings_alone(case, problem, shared, instruments)))
    part = equal_share(problem, world.size)
    if part is None:
        return Alone(findings)
    call, seconds = lone_call(kernel, part.problem(problem), part.inputs(shared.inputs)), None
    if world.rank == 0:  # the other ranks wait, so it has the machine to itself
        announce(f"{COMPUTING} alone")
        seconds = time_calls(call, World(world.device), instruments.budget).median
        announce("alone")
    seconds = world.everyone(seconds)[0]
    abreast = instruments.timed(call)
    return Alone(findings, seconds, abreast.median, abreast.rank_medians)


def _findings_alone(case: Case, problem: Problem, shared: SharedInputs, instruments: Instruments) -> list[Finding]:
    """The findings of the kernel on this rank's heads."""
    share, registry = shared.shares[instruments.world.rank], instruments.registry
    mine: list[Finding] = []
    instruments.announce(f"{COMPUTING} alone")
    if shared.expected is not None:
        asked = share.problem(problem)
        rough_lse = registry.resolve(case.kernel, asked).rough_lse
        kernel = registry.load(case.kernel)
        found = verify_alone(kernel, asked, shared.mine, shared.expected, rough_lse=rough_lse)
        mine = [share.named(finding) for finding in found]
    instruments.announce("alone")
    return mine


def computing_and_communication(
    kernel: WatchedKernel, call: Call, whole: float, instruments: Instruments
) -> dict[str, Any]:
    """The fields of the record about computing and communication.

    Args:
        kernel: The kernel that the strategy calls.
        call: The strategy's call.
        whole: The median of the call, in seconds.
        instruments: The instruments of this rank.
    """
    world, announce = instruments.world, instruments.announce
    # Computing comes first, at the clocks of the whole: a device that only communicates rests.
    announce("compute")
    compute = _computed(kernel, call, instruments)
    announce("communication")
    collectives = _collectives(kernel, call, world)
    sent = world.everyone(sent_by_kind(collectives))
    communication = measure_communication(collectives, world, instruments.budget)
    busiest = max(compute.rank_medians)
    return {
        "sent_bytes": {kind: tuple(each[kind] for each in sent) for kind in sorted({k for s in sent for k in s})},
        "communication": communication,
        "rank_compute_seconds": compute.rank_medians,
        "time_imbalance": busiest * world.size / sum(compute.rank_medians) if busiest else 1.0,
        "hidden": _hidden(communication, compute.median, whole),
    }


def _computed(kernel: WatchedKernel, call: Call, instruments: Instruments) -> Timing:
    """The times of the kernel's calls without communication."""
    with kernel.kept() as calls:
        call()

    def compute() -> None:
        for each in calls:
            each()

    return instruments.timed(compute)


def _collectives(kernel: WatchedKernel, call: Callable[[], object], world: World) -> list[Collective]:
    """The collectives of a call, recorded while kernels compute nothing: kernel libraries may not bear a recorder."""
    with kernel.silent(), Recorder() as recorder:
        call()
    world.synchronize()
    return recorder.collectives


def _hidden(communication: dict[str, Bandwidth], compute: float, whole: float) -> float | None:
    """The share of the communication's time that the whole does not take beyond computing."""
    if not communication:
        return None
    alone = communication[ALL]["seconds"]
    return min(1.0, max(0.0, (alone + compute - whole) / alone))
