"""The trial of a strategy with a kernel, on one of several ranks.

The strategy runs in this rank's worker, together with the workers of the other ranks. All ranks check results together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random, SystemRandom
from typing import Any

import torch

from longca.manifests import Direction, Problem
from longca.manifests.step_cuts import imbalance
from longca_bench.measuring.clocks import Clocks
from longca_bench.measuring.commands import Mode
from longca_bench.measuring.kernel_trial import WrongResultError
from longca_bench.measuring.remote_kernel import Ran, arguments_of
from longca_bench.measuring.remote_strategy import RemoteStrategy
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.shards import Results, Shard
from longca_bench.measuring.shares import SharedInputs, worst
from longca_bench.measuring.strategy_parts import computing_and_communication, single_gpu_baseline
from longca_bench.measuring.timing import Timing
from longca_bench.measuring.world import Instruments
from longca_bench.suites.tasks import Task
from longca_bench.verification.findings import Finding, Verification, findings_of, wrong

__all__ = ["StrategyTrial"]


class StrategyTrial:
    """A strategy with a kernel, on this rank's tokens. The problem is that of all ranks together."""

    def __init__(
        self,
        strategy: RemoteStrategy,
        problem: Problem,
        planned: dict[str, Any],
        task: Task,
        shared: SharedInputs,
        instruments: Instruments,
    ) -> None:
        world, arena, sharing = instruments.world, instruments.workers.arena, strategy.sharing
        self._random = Random(repr(world.everyone(_drawn())))
        self._shard = Shard(problem, sharing, shared, world, arena, task.rough_lse)
        self._shard.draw(self._random)  # after the plan, so no plan knows any call's inputs
        self._shard.write("q", "k", "v", "dout")
        self.problem, self.inputs = problem, self._shard.inputs
        self._world, self._instruments = world, instruments
        self._strategy, self._task, self._shared = strategy, task, shared
        self._forward: Results = {}
        self._verified: Results = {}
        self._landing: Results = {}
        self._keeps = False
        self._clocks = Clocks(world.device)
        self.fields = {
            "form": task.form,
            "placed": task.placed,
            "area_imbalance": imbalance(problem, sharing.layout),
            "verified_kv_heads": shared.verified_kv_heads,
            **planned,
        }

    def verify(self) -> Verification:
        """Verifies results, and that the strategy leaves its inputs alone."""
        found = self._checked(Direction.FORWARD)
        if not self.is_forward and found.passed:
            found += self._checked(Direction.BACKWARD)
        return found + Verification(self._all(self._shard.changed_inputs()))

    @property
    def is_forward(self) -> bool:
        """Whether the forward is measured, and not the backward."""
        return self.problem.direction == "forward"

    def verify_again(self) -> Verification:
        """Verifies the direction on changed inputs, after it was timed."""
        self.change()
        return self.verify()

    def check_counts(self) -> Verification:
        """Verifies the counts of visible keys."""
        tensors = self._tensors(Direction.FORWARD) | {"q": self._instruments.workers.arena.like(self.inputs.q, 0.0)}
        landing = self._shard.landing(Direction.FORWARD)
        _, breaches = self._called(lambda: self._strategy.call(Direction.FORWARD, tensors, landing))
        if found := self._all(breaches):
            return Verification(found)
        return Verification(self._all(self._shard.check_counts(landing["lse"])))

    def change(self) -> None:
        """Changes the inputs. The strategy's forward is run again before a backward, if it keeps tensors for it."""
        shard = self._shard
        shard.draw(self._random)
        shard.write("q", "k", "v")
        if self._keeps:
            _, breaches = self._called(lambda: self._call(Direction.FORWARD, self._forward, keeps=True))
            self._raise(self._all(breaches))
        else:
            for name, verified in self._verified.items():
                shard.change.write(name, verified, self._forward[name])
        shard.write("dout")  # after the forward, which has no use for it

    def sample(self) -> tuple[float, Results]:
        """The seconds and the results of a timed call on changed inputs. It may raise WrongResultError."""
        direction = self.problem.direction
        # Before the change, on inputs whose results are known: a strategy may keep tensors of the forward after it.
        self._strategy.keep_busy(direction, self._tensors(direction))
        self.change()
        self._landing = self._landing or self._shard.landing(direction)
        for there in self._landing.values():
            there.fill_(torch.nan)
        self._world.synchronize()
        self._world.everyone(None)  # all ranks give their commands at once, so their clocks can be compared
        ran, found = self._called(lambda: self._call(direction, self._landing, Mode.TIMED))
        if ran is not None:
            found += self._shard.incomplete(ran.results)
            if late := self._clocks.take(ran.reply.sample, ran.reply.seconds, ran.reply.answer.late):
                found += self._shard.here([wrong(next(iter(ran.results)), late)])
        words = self._world.everyone((found, _drawn()), tuple[list[Finding], int])
        self._random = Random(repr([drawn for _, drawn in words]))
        self._raise(worst(findings for findings, _ in words))
        assert ran is not None, "a call without results has findings"
        return ran.reply.sample, ran.results

    def inspect(self, results: Results) -> None:
        """Compares rows that are drawn after a timed call, checksums of heads that are not verified, and the inputs."""
        self._raise(self._all([*self._shard.check_rows(results, self._random), *self._shard.changed_inputs()]))

    def peaks(self) -> tuple[int, ...]:
        """Each rank's peak of memory. Empty on CPUs."""
        self._shard.checksums.is_complete = True  # of the first verification
        direction = self.problem.direction
        ran, breaches = self._called(lambda: self._call(direction, self._shard.landing(direction), Mode.PEAK))
        self._raise(self._all(breaches))
        peaks = self._world.everyone(None if ran is None else ran.reply.answer.peak)
        return tuple(peak for peak in peaks if peak is not None)

    def wall(self, timing: Timing) -> tuple[float, ...]:
        """Nothing: a caller's time of several ranks is not measured."""
        return ()

    def before_timing(self) -> dict[str, Any]:
        """Errors and times of the kernel on one device. The clocks begin, or begin anew."""
        self._clocks = Clocks(self._world.device)
        about = self._task.case, self.problem, self._strategy, self._shared, self._instruments
        return single_gpu_baseline(*about)

    def after_timing(self, timing: Timing, peaks: tuple[int, ...]) -> dict[str, Any]:
        """Each rank's times and memory, the clocks, and the times of computing and of communication."""
        self._instruments.announce("parts")
        direction = self.problem.direction
        traffic = self._strategy.record(direction, self._tensors(direction))
        apart = computing_and_communication(self._strategy, traffic, self._instruments)
        clocks = max(self._world.everyone(self._clocks.fields()), key=lambda each: each["distance"] - each["allowed"])
        return {"rank_samples": timing.ranks, "rank_peak_bytes": peaks, "clocks": clocks, **apart}

    def suspicion(self, *, busy: bool) -> str:
        """The clocks that do not agree, with their ranks, or an empty text."""
        faults = enumerate(self._world.everyone(self._clocks.fault(busy=busy)))
        return "; ".join(f"rank {rank}: {fault}" for rank, fault in faults if fault)

    def _checked(self, direction: Direction) -> Verification:
        """Verifies the results of one call on all ranks. A forward keeps its results for the backward."""
        landing, keeps = self._shard.landing(direction), direction is not self.problem.direction
        ran, breaches = self._called(lambda: self._call(direction, landing, keeps=keeps))
        if found := self._all(breaches):
            return Verification(found)
        if keeps and ran is not None:
            self._forward, self._verified = landing, self._shard.undone(landing)
            self._keeps = any(self._world.everyone(ran.reply.answer.kept))
        return Verification(self._all(self._shard.check(landing)))

    def _call(self, direction: Direction, landing: Results, mode: Mode = Mode.PLAIN, keeps: bool = False) -> Ran:
        return self._strategy.call(direction, self._tensors(direction), landing, mode=mode, keeps=keeps)

    def _tensors(self, direction: Direction) -> Results:
        return arguments_of(direction, self.inputs, self._forward)

    def _called(self, call: Callable[[], Ran]) -> tuple[Ran | None, list[Finding]]:
        """The result of a call, or the findings of this rank's breaches of the contract."""
        try:
            return call(), []
        except ContractError as error:
            return None, self._shard.here(findings_of(error))

    def _all(self, found: list[Finding]) -> tuple[Finding, ...]:
        """The worst findings of all ranks."""
        return worst(self._world.everyone(found, list[Finding]))

    def _raise(self, found: Iterable[Finding]) -> None:
        """Raises findings of a timed call, if there are any."""
        if found := [each.named(each.tensor.replace(" on", " of a timed call on", 1)) for each in found]:
            raise WrongResultError(found)


def _drawn() -> int:
    """A number that nobody can predict. Ranks draw from the numbers of all of them."""
    return SystemRandom().getrandbits(63)
