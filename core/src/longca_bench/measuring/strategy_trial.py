"""The trial of a strategy with a kernel, on one of several ranks.

The strategy runs in this rank's worker, together with the workers of the other ranks. The judges of all ranks check
results together. Each rank checks that its own results are complete, and compares the heads of its share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random, SystemRandom
from typing import Any

import torch
from torch import Tensor

from longca.manifests import Direction
from longca_advice.nominal import imbalance
from longca_bench.measuring.apart import computing_and_communication, kernel_alone
from longca_bench.measuring.clocks import Clocks
from longca_bench.measuring.commands import Mode
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.kernel_trial import LATE
from longca_bench.measuring.remote_kernel import Ran
from longca_bench.measuring.remote_strategy import RemoteStrategy, StrategyFacts
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.shared_inputs import SharedInputs
from longca_bench.measuring.shares import by_heads, held_tokens, worst
from longca_bench.measuring.timing import Timing
from longca_bench.measuring.trial import Trial, WrongResultError
from longca_bench.measuring.workers import Heard
from longca_bench.suites.tasks import Task
from longca_bench.verification.change import Change
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.rows import Checksums, at_tokens, drawn_tokens
from longca_bench.verification.verify import (
    Finding,
    Verification,
    check_lse_counts,
    check_values,
    findings_of,
    lse_dtype,
    wrong,
)

__all__ = ["StrategyTrial"]

#: A rank's tensors by their names: out and lse, or dq, dk and dv.
Results = dict[str, Tensor]
_INPUTS = ("q", "k", "v", "dout")


@dataclass(frozen=True)
class _Word:
    """What a rank tells the others after a call: its findings, its waits for a core, and a number that it has drawn."""

    findings: list[Finding]
    waited: tuple[float, float]
    drawn: int


class StrategyTrial(Trial):
    """A strategy with a kernel, on this rank's tokens.

    Args:
        strategy: The strategy.
        plan: Its plan of the problem of all ranks together.
        task: The case.
        shared: The inputs, shares and reference that cases share.
        instruments: The instruments of this rank.
    """

    def __init__(
        self,
        strategy: RemoteStrategy,
        plan: StrategyFacts,
        task: Task,
        shared: SharedInputs,
        instruments: Instruments,
    ) -> None:
        sharing, self._world, arena = strategy.sharing, instruments.world, instruments.workers.arena
        layout, place = sharing.layout, sharing.places[instruments.world.rank]
        self._given = {name: layout.shard(getattr(shared.inputs, name), place) for name in _INPUTS}
        super().__init__(plan.problem, Inputs(*map(arena.clone, self._given.values())), shared.expected)
        self._strategy, self._plan, self._task = strategy, plan, task
        self._shared, self._instruments = shared, instruments
        self._share = shared.shares[self._world.rank]
        self._held = held_tokens(layout, sharing.places)
        self._owner = torch.empty(layout.num_tokens, dtype=torch.int64)
        self._row = torch.empty(layout.num_tokens, dtype=torch.int64)
        for rank, tokens in enumerate(self._held):
            self._owner[tokens], self._row[tokens] = rank, torch.arange(len(tokens))
        self._change, self._random = Change.none(plan.problem), Random(repr(self._world.everyone(_drawn())))
        self._checksums = Checksums()
        self._clocks = Clocks(self._world.device, strategy.latency)
        self._forward: Results = {}
        self._verified: Results = {}
        self._landing: Results = {}
        self._keeps = False
        self.fields = {
            "form": task.form,
            "placed": task.placed,
            "area_imbalance": imbalance(plan.problem, layout),
            "layout_seconds": plan.layout_seconds,
            "plan_seconds": plan.plan_seconds,
            "metadata_bytes": plan.metadata_bytes,
            "verified_kv_heads": shared.verified_kv_heads,
        }

    def verify(self) -> Verification:
        """Verifies results, and that the strategy leaves its inputs alone."""
        found = self._checked(Direction.FORWARD)
        if not self.is_forward and found.passed:
            found += self._checked(Direction.BACKWARD)
        return found + self._check_inputs()

    def check_counts(self) -> Verification:
        """Verifies the counts of visible keys."""
        arena, x = self._instruments.workers.arena, self.inputs
        tensors = {"q": arena.like(x.q, 0.0), "k": x.k, "v": x.v}
        landing = self._landed(Direction.FORWARD)
        _, breaches = self._called(lambda: self._strategy.call(Direction.FORWARD, tensors, self._plan, landing))
        if found := self._all(breaches):
            return Verification(found)
        whole = self._by_heads("lse", landing["lse"])
        counted = () if self._share.is_empty else check_lse_counts(whole, self._share.problem(self.problem)).findings
        return Verification(self._all(self._named(counted)))

    def change(self) -> None:
        """Changes the inputs. The strategy's forward is run again before a backward, if it keeps tensors for it.

        Raises:
            WrongResultError: The forward's results break the contract on some rank.
        """
        self._change = Change.draw(self.problem, self._change, self._random)
        self._write("q", "k", "v")
        if not self.is_forward:
            if self._keeps:
                call = lambda: self._call(Direction.FORWARD, self._forward, keeps=True)  # noqa: E731
                self._raise(self._all(self._called(call)[1]))
            else:
                for name, verified in self._verified.items():
                    self._change.write(name, verified, self._forward[name])
        self._write("dout")  # after the forward, which has no use for it

    def sample(self) -> tuple[float, Results]:
        """The seconds and the results of a timed call on changed inputs."""
        self.change()
        direction, start = self.problem.direction, time.perf_counter()
        self._landing = self._landing or self._landed(direction)
        for there in self._landing.values():
            there.fill_(torch.nan)
        self._world.synchronize()
        handling = time.perf_counter() - start
        self._world.everyone(None)  # all judges give their commands at once, so their clocks can be compared
        ran, found = self._called(lambda: self._call(direction, self._landing, Mode.TIMED))
        if ran is None:
            self._heard([*found], None)
            raise AssertionError("a wrong call ends the sampling")
        found += self._incomplete(ran.results)
        if ran.heard.answer.late > LATE:
            late = f"the device went on for {ran.heard.answer.late * 1e3:.3g} ms after the call had ended"
            found.append(wrong(next(iter(ran.results)), late))
        seconds = ran.heard.answer.seconds or 0.0
        self._clocks.take(seconds, self._heard(found, ran.heard), handling)
        return seconds, ran.results

    def inspect(self, results: Results) -> None:
        """Compares rows that are drawn after a timed call, and the checksums of all heads if only some are verified.

        Raises:
            WrongResultError: They are wrong on some rank.
        """
        tokens = drawn_tokens(len(self._owner), self._random)
        held = [tokens[self._owner[tokens] == rank] for rank in range(self._world.size)]
        found: list[Finding] = []
        for name, result in results.items():
            rows = self._row[held[self._world.rank]].to(result.device)
            mine = self._change.undo(name, result.index_select(int(name == "lse"), rows))
            part = by_heads(name, mine, held, self._shared.shares, self._world)
            if self.expected is not None:
                expected = at_tokens(self.expected, name, tokens.to(part.device))
                failures = check_values({name: part}, expected, rough_lse=self._task.rough_lse).failures
                found += [replace(each, token=int(tokens[each.token])) for each in failures]
        found = self._named(found)
        if self._shared.verified_kv_heads is not None:
            found += self._on_this_rank(self._checksums.check(results, self._change.undo))
        self._raise(self._all(found))

    def peaks(self) -> tuple[int, ...]:
        """Each rank's peak of memory. Empty on CPUs."""
        self._checksums.is_complete = True  # of the first verification
        direction = self.problem.direction
        ran, found = self._called(lambda: self._call(direction, self._landed(direction), Mode.PEAK))
        self._raise(self._all(found))
        peaks = self._world.everyone(None if ran is None else ran.heard.answer.peak)
        return tuple(peak for peak in peaks if peak is not None)

    def before_timing(self) -> dict[str, Any]:
        """Errors and times of the kernel alone."""
        about = self._task.case, self.problem, self._strategy, self._shared, self._instruments
        return kernel_alone(*about).fields()

    def after_timing(self, timing: Timing, peaks: tuple[int, ...]) -> dict[str, Any]:
        """Each rank's times and memory, the clocks, and the times of computing and of communication apart."""
        direction = self.problem.direction
        apart = computing_and_communication(
            self._strategy,
            lambda part: self._strategy.record(part, direction, self._tensors(direction), self._plan),
            timing.median,
            self._instruments,
        )
        clocks = max(self._world.everyone(self._clocks.fields()), key=lambda each: each["distance"] - each["allowed"])
        return {"rank_samples": timing.ranks, "rank_peak_bytes": peaks, "clocks": clocks, **apart}

    def suspicion(self) -> str:
        """What the two clocks of a rank do not agree about, or an empty text."""
        faults = enumerate(self._world.everyone(self._clocks.fault()))
        return "; ".join(f"rank {rank}: {fault}" for rank, fault in faults if fault)

    def _checked(self, direction: Direction) -> Verification:
        """Verifies the results of one call on all ranks. A forward keeps its results for the backward."""
        landing, keeps = self._landed(direction), direction is not self.problem.direction
        ran, breaches = self._called(lambda: self._call(direction, landing, keeps=keeps))
        if found := self._all(breaches):
            return Verification(found)
        if keeps and ran is not None:
            self._forward = landing
            self._verified = {name: self._change.undo(name, result) for name, result in landing.items()}
            self._keeps = any(self._world.everyone(ran.heard.answer.kept))
        return self.check(landing)

    def check(self, results: Results) -> Verification:
        """Verifies the results of all ranks. Each rank verifies its heads, and every rank learns all findings.

        Args:
            results: This rank's results.
        """
        found = self._incomplete(results)
        whole = {name: self._by_heads(name, result) for name, result in results.items()}
        if self.expected is not None:
            checked = check_values(whole, self.expected, rough_lse=self._task.rough_lse)
            found += self._named(checked.findings)
        return Verification(self._all(found))

    def _call(self, direction: Direction, landing: Results, mode: Mode = Mode.PLAIN, keeps: bool = False) -> Ran:
        about = direction, self._tensors(direction), self._plan, landing
        return self._strategy.call(*about, mode=mode, keeps=keeps)

    def _called(self, call: Any) -> tuple[Ran | None, list[Finding]]:
        """A call of the worker, or what breaks the contract."""
        try:
            return call(), []
        except ContractError as error:
            return None, self._on_this_rank(findings_of(error))

    def _heard(self, found: list[Finding], heard: Heard | None) -> Heard:
        """The worker's answer, with the longest waits of all ranks for a core: ranks wait for each other.

        Raises:
            WrongResultError: The call was wrong on some rank.
        """
        waited = (heard.ended.waited, heard.done.waited) if heard is not None else (0.0, 0.0)
        words = self._world.everyone(_Word(found, waited, _drawn()))
        self._random = Random(repr([word.drawn for word in words]))
        self._raise(worst(word.findings for word in words))
        assert heard is not None, "a call without an answer is wrong"
        ended, done = (max(each) for each in zip(*(word.waited for word in words), strict=True))
        return replace(heard, ended=replace(heard.ended, waited=ended), done=replace(heard.done, waited=done))

    def _tensors(self, direction: Direction) -> Results:
        x = self.inputs
        tensors = {"q": x.q, "k": x.k, "v": x.v}
        return tensors if direction is Direction.FORWARD else {"dout": x.dout, **tensors, **self._forward}

    def _landed(self, direction: Direction) -> Results:
        """New shared tensors for this rank's results, full of NaN."""
        arena, x = self._instruments.workers.arena, self.inputs
        if direction is Direction.BACKWARD:
            return {name: arena.like(like, torch.nan) for name, like in (("dq", x.q), ("dk", x.k), ("dv", x.v))}
        lse = arena.empty((x.q.shape[1], x.q.shape[0]), lse_dtype(x.q)).fill_(torch.nan)
        return {"out": arena.like(x.q, torch.nan), "lse": lse}

    def _write(self, *names: str) -> None:
        for name in names:
            self._change.write(name, self._given[name], getattr(self.inputs, name))

    def _check_inputs(self) -> Verification:
        """Verifies that this rank's inputs are as they were written."""
        now = {name: self._change.undo(name, getattr(self.inputs, name)) for name in _INPUTS}
        changed = [name for name, given in self._given.items() if not torch.equal(now[name], given)]
        found = self._on_this_rank(wrong(name, "the strategy changed this input") for name in changed)
        self._write(*changed)
        return Verification(self._all(found))

    def _incomplete(self, results: Mapping[str, Tensor]) -> list[Finding]:
        """A finding for each result of this rank that is not complete."""
        parts = {name: ~x.isnan() if name == "lse" else x.isfinite() for name, x in results.items()}
        note = "not every element is finite, or was written"
        return self._on_this_rank(wrong(name, note) for name, whole in parts.items() if not whole.all())

    def _by_heads(self, name: str, mine: Tensor) -> Tensor:
        """All tokens of a result for this rank's heads. The first verification's results give the checksums."""
        there = self._change.undo(name, mine)
        if self._shared.verified_kv_heads is not None and not self._checksums.is_complete:
            self._checksums.keep(name, there)
        return by_heads(name, there, self._held, self._shared.shares, self._world)

    def _named(self, found: Iterable[Finding]) -> list[Finding]:
        """Findings in this rank's share. A failure names the rank that holds its token."""
        named = [self._share.named(each) for each in found]
        return [each if each.passed else _on(each, int(self._owner[each.token])) for each in named]

    def _on_this_rank(self, found: Iterable[Finding]) -> list[Finding]:
        return [_on(each, self._world.rank) for each in found]

    def _all(self, found: list[Finding]) -> tuple[Finding, ...]:
        """The worst findings of all ranks."""
        return worst(self._world.everyone(found))

    def _raise(self, found: Iterable[Finding]) -> None:
        """Raises the findings of a timed call, if there are any."""
        if found := [each.named(each.tensor.replace(" on", " of a timed call on", 1)) for each in found]:
            raise WrongResultError(found)


def _drawn() -> int:
    """A number that nobody can predict. All ranks together draw from the numbers of all."""
    return SystemRandom().getrandbits(63)


def _on(finding: Finding, rank: int) -> Finding:
    return finding.named(f"{finding.tensor} on rank {rank}")
