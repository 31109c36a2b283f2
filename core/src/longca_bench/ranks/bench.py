"""Measuring one case on all ranks: plan, verify, and only then time, apart and together; and verify again."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import torch

from longca import plugins
from longca.manifests import Device, Problem
from longca.parallel.meshes import rank_in
from longca.parallel.traffic import Collective, Recorder, sent_by_kind
from longca_advice.nominal import imbalance
from longca_bench.measuring.gpu_state import gpu_state
from longca_bench.measuring.measure import BUDGET
from longca_bench.measuring.messages import Outcome
from longca_bench.measuring.timing import time_calls
from longca_bench.ranks.alone import Alone, equal_share, lone_call, verify_alone
from longca_bench.ranks.common import Common, Commons
from longca_bench.ranks.communication import ALL, Bandwidth, measure_communication
from longca_bench.ranks.messages import COMPUTING, Task
from longca_bench.ranks.probe import Call, Probe
from longca_bench.ranks.rounds import Rounds, time_rounds
from longca_bench.ranks.shares import verified_heads
from longca_bench.ranks.subject import Results, Subject, worst
from longca_bench.ranks.world import World
from longca_bench.suites.cases import Case
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.verify import Finding, Verification

__all__ = ["RankBench"]

_T = TypeVar("_T")


class RankBench:
    """Measures cases together with the other ranks, which do the same; keeps what cases of one shape share.

    Args:
        device: What each rank measures on.
        world: The ranks.
        registry: Where kernels and strategies come from.
        with_backward: Lengths whose references need gradients.
        announce: Told which phase a case is in.
        budget: Seconds of samples for each thing that is timed.
    """

    def __init__(
        self,
        device: Device,
        world: World,
        registry: plugins.Registry,
        with_backward: Container[int],
        announce: Callable[[str], None],
        budget: float = BUDGET,
    ) -> None:
        self._device, self._world, self._registry = device, world, registry
        self._announce, self._budget = announce, budget
        self._commons = Commons(world, with_backward)

    def measure(self, task: Task) -> Outcome:
        """Verifies a strategy with a kernel, times it where it is right, and verifies it again.

        Returns:
            What came of it; on ranks other than the first without the measured fields.
        """
        case, problem = task.case, task.case.problem(self._device)
        self._announce("inputs")
        shared = self._commons.of(case, problem)
        self._announce("plan")
        subject, fields = self._planned(task, problem, shared)
        self._announce("verify")
        with subject.probe.told(self._tell, self._world.synchronize):
            (found, forward, kept), first = self._clocked(lambda: self._verified(subject, shared))
        fields["first_seconds"] = max(self._world.everyone(first))
        fields["verified_kv_heads"] = verified_heads(problem, shared.shares)
        alone = self._alone(case, problem, shared) if found.passed else None
        if alone is not None:
            fields |= self._timed(subject, forward, kept) | alone.fields()
            self._announce("verify again")
            found += self._verified_again(subject, fields.pop("last"))
        fields["findings"] = tuple(map(asdict, found.findings))
        if not found.passed:
            failures = "; ".join(map(str, found.failures))
            return Outcome("wrong", failures, {"findings": fields["findings"], "placed": fields["placed"]})
        return Outcome("ok", "", fields if self._world.rank == 0 else {})

    def _tell(self, phase: str) -> None:
        self._announce(phase or "verify")

    def _clocked(self, call: Callable[[], _T]) -> tuple[_T, float]:
        self._world.synchronize()
        start = time.perf_counter()
        result = call()
        self._world.synchronize()
        return result, time.perf_counter() - start

    def _planned(self, task: Task, problem: Problem, shared: Common) -> tuple[Subject, dict[str, Any]]:
        """The case made ready, and what is recorded of that."""
        case, world, parallel = task.case, self._world, task.case.parallel
        assert parallel is not None, "ranks take cases with a strategy"
        probe = Probe(self._registry.load(case.kernel))
        mesh = world.mesh(parallel.mesh)
        strategy = self._registry.load_strategy(parallel.strategy)(mesh)
        places = world.everyone(rank_in(mesh, self._registry.strategy(parallel.strategy).axes))
        layout, layout_seconds = self._clocked(
            lambda: self._registry.layout(parallel.strategy, problem, parallel.axis_sizes, task.placed)
        )
        plan, seconds = self._clocked(lambda: strategy.plan(problem, layout, probe))
        self._announce("planned")  # from here on others are waited for
        verdict = self._registry.resolve(case.kernel, problem, layout)
        times = zip(*world.everyone((layout_seconds, seconds, plan.metadata_bytes)), strict=True)
        fields = dict(zip(("layout_seconds", "plan_seconds", "metadata_bytes"), map(max, times), strict=True))
        fields |= {"placed": task.placed, "form": verdict.form, "area_imbalance": imbalance(problem, layout)}
        mine = Inputs(
            *(layout.shard(getattr(shared.inputs, name), places[world.rank]) for name in ("q", "k", "v", "dout"))
        )
        about = strategy, plan, probe, problem, layout, places, mine, shared.shares, shared.expected
        return Subject(*about, verdict.rough_lse, world), fields

    def _verified(self, subject: Subject, shared: Common) -> tuple[Verification, Results, list[torch.Tensor] | None]:
        """What is found before anything is timed; and the forward's results, which a backward needs."""
        forward, kept = subject.forward()
        found = subject.check(forward)
        if not subject.is_forward:
            found += subject.check(subject.call(forward, kept))
        found += subject.check_inputs(shared.inputs)
        if subject.is_forward and found.passed:
            found += subject.check_counts()
        return found, forward, kept

    def _verified_again(self, subject: Subject, last: Results) -> Verification:
        """What is found of the last timed call, and of new inputs in the same memory."""
        found = subject.check(last)
        found = Verification(tuple(f.named(f"{f.tensor} of a timed call") for f in found.failures))
        again = subject.negated()
        forward, kept = again.forward()
        after = again.check(forward if again.is_forward else again.call(forward, kept))
        return found + Verification(tuple(f.named(f"{f.tensor} after timing") for f in after.findings))

    def _timed(self, subject: Subject, forward: Results, kept: list[torch.Tensor] | None) -> dict[str, Any]:
        """The times of the whole, of computing and of communication, and what is made of them."""
        world, call = self._world, partial(subject.call, forward, kept)
        self._announce("time")
        peaks = self._peaks(call)
        whole = time_rounds(call, world, self._budget)
        gpu = gpu_state() if self._device.kind == "cuda" else None
        # Computing comes next, while clocks are still what they were: a device that only communicates rests.
        self._announce("compute")
        compute = self._computed(subject, call)
        self._announce("communication")
        collectives = self._collectives(subject, call)
        sent = world.everyone(sent_by_kind(collectives))
        communication = measure_communication(collectives, world, self._budget)
        busiest = max(compute.rank_medians)
        return {
            "last": whole.last,
            "samples": whole.samples,
            "rank_samples": whole.ranks,
            "warm_up": whole.warm_up,
            "median": whole.median,
            "tflops": subject.problem.flops / world.size / whole.median / 1e12,
            "peak_bytes": max(peaks) if peaks else None,
            "rank_peak_bytes": peaks,
            "gpu": gpu,
            "sent_bytes": {kind: tuple(each[kind] for each in sent) for kind in sorted({k for s in sent for k in s})},
            "communication": communication,
            "rank_compute_seconds": compute.rank_medians,
            "time_imbalance": busiest * world.size / sum(compute.rank_medians) if busiest else 1.0,
            "hidden": _hidden(communication, compute.median, whole.median),
        }

    def _peaks(self, call: Call) -> tuple[int, ...]:
        """Each rank's peak of memory during one call, above what was there before it; none on CPUs."""
        if self._device.kind == "cpu":
            return ()
        self._world.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        self._world.synchronize()
        return tuple(self._world.everyone(torch.cuda.max_memory_allocated() - before))

    def _collectives(self, subject: Subject, call: Call) -> list[Collective]:
        """What a call communicates, seen while kernels compute nothing: libraries may mind being watched."""
        with subject.probe.silent(), Recorder() as recorder:
            call()
        self._world.synchronize()
        return recorder.collectives

    def _computed(self, subject: Subject, call: Call) -> Rounds:
        """The times of the kernel's calls alone."""
        with subject.probe.kept() as calls:
            call()

        def compute() -> None:
            for each in calls:
                each()

        return time_rounds(compute, self._world, self._budget)

    def _alone(self, case: Case, problem: Problem, shared: Common) -> Alone:
        """The kernel without a strategy; once for all strategies of a shape."""
        key = case.kernel, case.direction
        if key not in shared.alone:
            shared.alone[key] = self._measured_alone(case, problem, shared)
        return shared.alone[key]

    def _measured_alone(self, case: Case, problem: Problem, shared: Common) -> Alone:
        kernel, world = self._registry.load(case.kernel), self._world
        if not self._registry.resolve(case.kernel, problem):
            return Alone()
        share, expected = shared.shares[world.rank], shared.expected
        mine: list[Finding] = []
        self._announce(f"{COMPUTING} alone")
        if expected is not None:
            asked = share.problem(problem)
            rough_lse = self._registry.resolve(case.kernel, asked).rough_lse
            found = verify_alone(kernel, asked, shared.mine, expected, rough_lse=rough_lse)
            mine = [share.named(finding) for finding in found]
        self._announce("alone")
        findings = worst(world.everyone(mine))
        part = equal_share(problem, world.size)
        if part is None:
            return Alone(findings)
        call, seconds = lone_call(kernel, part.problem(problem), part.inputs(shared.inputs)), None
        if world.rank == 0:  # the others wait: it has the machine to itself
            self._announce(f"{COMPUTING} alone")
            seconds = time_calls(call, world.device, self._budget).median
            self._announce("alone")
        seconds = world.everyone(seconds)[0]
        abreast = time_rounds(call, world, self._budget)
        return Alone(findings, seconds, abreast.median, abreast.rank_medians)


def _hidden(communication: dict[str, Bandwidth], compute: float, whole: float) -> float | None:
    """The share of communication's time that the whole does not take beyond computing."""
    if not communication:
        return None
    alone = communication[ALL]["seconds"]
    return min(1.0, max(0.0, (alone + compute - whole) / alone))
