"""The trial of a strategy with a kernel, on one of several ranks. The last timed result is verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel
from longca.manifests import Layout, Problem
from longca.parallel.meshes import rank_in
from longca.parallel.strategy import Strategy, StrategyPlan
from longca_advice.nominal import imbalance
from longca_bench.measuring.apart import computing_and_communication, kernel_alone
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import by_heads, worst
from longca_bench.measuring.timing import Timing, timed_call
from longca_bench.measuring.trial import Trial, WrongResultError
from longca_bench.measuring.watched_kernel import WatchedKernel
from longca_bench.ranks.world import JobWorld
from longca_bench.suites.tasks import Task
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.verify import Finding, Verification, check_lse_counts, check_values, wrong

__all__ = ["StrategyTrial"]

#: A rank's tensors by their names: out and lse, or dq, dk and dv.
Results = dict[str, Tensor]
_BACKWARD = ("dq", "dk", "dv")
_INPUTS = ("q", "k", "v", "dout")


class StrategyTrial(Trial):
    """A strategy with a kernel, on this rank's tokens.

    Args:
        task: The case.
        problem: The problem of all ranks together.
        strategy: The strategy.
        plan: The strategy's plan, made with the watched kernel.
        kernel: The kernel that the strategy calls.
        layout: The tokens and steps of each place.
        places: Each rank's place in the layout.
        shared: The inputs, shares and reference that cases share.
        rough_lse: Whether an offer that the steps use calls its log-sum-exp rough.
        instruments: The instruments of this rank.
    """

    def __init__(
        self,
        task: Task,
        problem: Problem,
        strategy: Strategy,
        plan: StrategyPlan,
        kernel: WatchedKernel,
        layout: Layout,
        places: Sequence[int],
        shared: SharedInputs,
        *,
        rough_lse: bool,
        instruments: Instruments,
    ) -> None:
        self._world, self._place = instruments.world, places[instruments.world.rank]
        mine = Inputs(*(layout.shard(getattr(shared.inputs, name), self._place) for name in _INPUTS))
        super().__init__(problem, mine, shared.expected)
        self._task, self._kernel, self._shared = task, kernel, shared
        self._strategy, self._plan, self._layout, self._places = strategy, plan, layout, places
        self._rough_lse, self._instruments = rough_lse, instruments
        self._forward: Results = {}
        self._saved: list[Tensor] | None = None
        self._negated = False
        self.fields = {"placed": task.placed, "area_imbalance": imbalance(problem, layout)}

    @classmethod
    def planned(
        cls, task: Task, kernel: Kernel, problem: Problem, shared: SharedInputs, instruments: Instruments
    ) -> StrategyTrial:
        """Lays out and plans a case, on all ranks.

        Args:
            task: The case.
            kernel: Its kernel.
            problem: The problem of all ranks together.
            shared: The inputs, shares and reference that cases share.
            instruments: The instruments of this rank.
        """
        world, registry, parallel = instruments.world, instruments.registry, task.case.parallel
        assert parallel is not None, "ranks take cases with a strategy"
        assert isinstance(world, JobWorld), "a strategy runs on the ranks of a job"
        watched, mesh = WatchedKernel(kernel), world.mesh(parallel.mesh)
        strategy = registry.load_strategy(parallel.strategy)(mesh)
        places = world.everyone(rank_in(mesh, registry.strategy(parallel.strategy).axes))
        layout, layout_seconds = instruments.clocked(
            lambda: registry.layout(parallel.strategy, problem, parallel.axis_sizes, task.placed or "")
        )
        plan, seconds = instruments.clocked(lambda: strategy.plan(problem, layout, watched))
        instruments.announce("planned")  # ranks wait for each other from here on
        verdict = registry.resolve(task.case.kernel, problem, layout)
        about = task, problem, strategy, plan, watched, layout, places, shared
        trial = cls(*about, rough_lse=verdict.rough_lse, instruments=instruments)
        times = zip(*world.everyone((layout_seconds, seconds, plan.metadata_bytes)), strict=True)
        names = "layout_seconds", "plan_seconds", "metadata_bytes"
        trial.fields |= {"form": verdict.form, **dict(zip(names, map(max, times), strict=True))}
        return trial

    @contextmanager
    def told(self) -> Iterator[None]:
        """Announces each call of the kernel, and waits for its end."""
        announce = self._instruments.announce
        with self._kernel.told(lambda phase: announce(phase or "verify"), self._world.synchronize):
            yield

    def verify(self) -> Verification:
        """Verifies results, and before timing also that the strategy leaves its inputs alone."""
        x = self.inputs
        self._saved = None if self.is_forward else []
        out, lse = self._strategy.forward(x.q, x.k, x.v, self._plan, kept=self._saved)
        self._forward = {"out": out, "lse": lse}
        if self._negated:
            return self.check(self._forward if self.is_forward else self.call())
        found = self.check(self._forward)
        if not self.is_forward:
            found += self.check(self.call())
        return found + self._check_inputs()

    def check_counts(self) -> Verification:
        """Verifies the counts of visible keys."""
        x = self.inputs
        _, lse = self._strategy.forward(torch.zeros_like(x.q), x.k, x.v, self._plan)
        whole, share = self._by_heads("lse", lse), self._shared.shares[self._world.rank]
        found = () if share.is_empty else check_lse_counts(whole, share.problem(self.problem)).findings
        return self._all([share.named(each) for each in found])

    def call(self) -> Results:
        """The strategy's own call."""
        x = self.inputs
        if self.is_forward:
            out, lse = self._strategy.forward(x.q, x.k, x.v, self._plan)
            return {"out": out, "lse": lse}
        forward = self._forward["out"], self._forward["lse"]
        grads = self._strategy.backward(x.dout, x.q, x.k, x.v, *forward, self._plan, kept=self._saved)
        return dict(zip(_BACKWARD, grads, strict=True))

    def sample(self) -> tuple[float, Results]:
        """The seconds and the results of the strategy's own call."""
        return timed_call(self.call, self._world)

    def inspect(self, results: Results) -> None:
        """Checks the results of a timed call."""
        found = self.check(results)
        if not found.passed:
            raise WrongResultError([finding.named(f"{finding.tensor} of a timed call") for finding in found.failures])

    def peaks(self) -> tuple[int, ...]:
        """Each rank's peak of memory."""
        return self._instruments.peaks(self.call)

    def change(self) -> None:
        """Negates v in place, and the reference with it."""
        self.inputs.v.neg_()
        if self.expected is not None:
            rows = {
                name: replace(row, value=-row.value) if name in ("out", "dq", "dk") else row
                for name, row in self.expected.rows.items()
            }
            self.expected = replace(self.expected, rows=rows)
        self._negated = True

    def before_timing(self) -> dict[str, Any]:
        """Errors and times of the kernel alone."""
        return kernel_alone(self._task.case, self.problem, self._shared, self._instruments).fields()

    def after_timing(self, timing: Timing, peaks: tuple[int, ...]) -> dict[str, Any]:
        """Each rank's times and memory, and the times of computing and of communication apart."""
        apart = computing_and_communication(self._kernel, self.call, timing.median, self._instruments)
        return {"rank_samples": timing.ranks, "rank_peak_bytes": peaks, **apart}

    def check(self, results: Results) -> Verification:
        """Verifies the results of all ranks. Each rank verifies its heads, and every rank learns all findings."""
        findings = list(self._misfits(results))
        if any(self._world.everyone(bool(findings))):
            return self._all(findings)
        whole = {name: self._by_heads(name, mine) for name, mine in results.items()}
        if self.expected is not None:
            share = self._shared.shares[self._world.rank]
            found = check_values(whole, self.expected, rough_lse=self._rough_lse)
            findings = [share.named(finding) for finding in found.findings]
        return self._all(findings)

    def _check_inputs(self) -> Verification:
        """Verifies that this rank's inputs are still its shard of all inputs."""
        given, note = self._shared.inputs, f"the strategy changed this input on rank {self._world.rank}"
        shards = {name: self._layout.shard(getattr(given, name), self._place) for name in _INPUTS}
        changed = [name for name, shard in shards.items() if not torch.equal(getattr(self.inputs, name), shard)]
        return self._all([wrong(name, note) for name in changed])

    def _misfits(self, results: Results) -> Iterator[Finding]:
        """A finding for each result of this rank whose shape or dtype breaks the contract."""
        x = self.inputs
        like = {"out": x.q, "dq": x.q, "dk": x.k, "dv": x.v}
        for name, result in results.items():
            wanted = (x.q.shape[1], x.q.shape[0]) if name == "lse" else like[name].shape
            if result.shape != wanted or (name != "lse" and result.dtype != x.q.dtype):
                note = f"{tuple(result.shape)} {result.dtype} came back; {tuple(wanted)} is the contract"
                yield wrong(name, f"{note}, on rank {self._world.rank}")

    def _by_heads(self, name: str, mine: Tensor) -> Tensor:
        return by_heads(name, mine, self._layout, self._places, self._shared.shares, self._world)

    def _all(self, findings: list[Finding]) -> Verification:
        return Verification(worst(self._world.everyone(findings)))
