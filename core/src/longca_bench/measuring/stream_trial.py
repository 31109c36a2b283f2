"""The trial of a stream of masks: the same steps with plans that are there, with planning in each step, and prefetched.

Steps run in windows, because the inputs and the results of every step are kept until they are checked. Each step has
inputs of its own, which change between the ways. All results of every step and way are verified. If a reference of all
heads would take long, the steps verify heads by turns. The ways of a window take turns, so that a drift of the
machine's speed meets all of them. At the end of a window its steps are prefetched once more, on inputs that nobody has
met (`write_new`). They must be right, and as fast as before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from random import Random, SystemRandom
from statistics import median
from typing import Any

import torch

from longca.manifests import Device, Direction, Layout, Problem, Step
from longca_advice.nominal import imbalance
from longca_bench.measuring.case_end import CaseEndError
from longca_bench.measuring.clocks import MANY_ATTEMPTS, Clocks
from longca_bench.measuring.heard import Heard
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.messages import Result
from longca_bench.measuring.new_work import COMPARED
from longca_bench.measuring.noise import disturbed, quietly
from longca_bench.measuring.remote_kernel import RemoteKernel
from longca_bench.measuring.shards import Results, Shard
from longca_bench.measuring.shared_inputs import InputCache
from longca_bench.measuring.shares import worst
from longca_bench.measuring.status import Status
from longca_bench.measuring.stream_commands import RunStream, StreamSetting, TakeStream, Way
from longca_bench.measuring.stream_windows import Windows
from longca_bench.suites.streams import cold, masks_of
from longca_bench.suites.tasks import Sharing, Task
from longca_bench.verification.findings import Finding, Verification, given_results
from longca_bench.verification.head_sample import Turn

__all__ = ["StreamTrial"]

_INPUTS = ("q", "k", "v", "dout")


@dataclass(frozen=True)
class _Made:
    """Steps of a window that were made.

    Attributes:
        taken: The worker's answer before them.
        heard: The worker's answer after them.
        handling: Seconds in which this process wrote tensors like the results.
        seconds: Seconds of each step on the slowest rank.
        samples: The same over the seconds of the fixed steps. Steps of several masks differ, and a drift of the machine
            shows in these ratios.
    """

    taken: Heard
    heard: Heard
    handling: float
    seconds: tuple[float, ...]
    samples: tuple[float, ...] = ()


class StreamTrial:
    """A stream on this rank.

    Args:
        task: The case.
        device: The device of each rank.
        instruments: The instruments of this rank.
        inputs: Draws inputs and computes references.
        wait_idle: Seconds that the stream may wait for a quiet machine.
    """

    def __init__(
        self, task: Task, device: Device, instruments: Instruments, inputs: InputCache, wait_idle: float = 0.0
    ) -> None:
        case = task.case
        assert case.stream is not None, "the case is a stream"
        self._task, self._instruments, self._inputs = task, instruments, inputs
        self._world, self._problem = instruments.world, case.problem(device)
        self._masks = masks_of(case)
        whole = Sharing(_on_one(self._problem), (0,), True, task.rough_lse)
        self._sharings = task.steps or (whole,) * len(self._masks)
        self._layers = case.stream.layers
        self._random = Random(repr(self._world.everyone(SystemRandom().getrandbits(63))))
        alone = case.kernel if case.parallel is None else ""
        self._worker = instruments.workers.of(task.distributions, alone)
        self._latency, self._clocks, self._held = 0.0, dict[Way, Clocks](), ""
        self._seconds: dict[str, list[float]] = {name: [] for name in ("plan", *Way)}
        # The runner waits for this process.
        self._ours = {pid for each in self._world.everyone((os.getpid(), os.getppid())) for pid in each}
        self._noise: list[dict[str, Any]] = []
        self._wait = wait_idle
        self._peak: int | None = None
        self._moved_by = ""
        self._windows, self._step_bytes = Windows(len(self._masks), self._world), 0
        self._turn = self._random.randrange(self._problem.num_heads_kv)
        self._verified, self._verified_all = set[int](), True
        self._without_lse = False

    def measure(self) -> Result:
        """Makes all steps, verifies them, and returns their times.

        Raises:
            CaseEndError: What the plugin's code did ends the case.
        """
        self._load()
        found: tuple[Finding, ...] = ()
        for steps in self._windows:
            found = worst([found, self._window(steps)])
            self._give_back()
            self._windows.fit(self._step_bytes, self._peak or 0)
        verification, heads = Verification(found), None if self._verified_all else tuple(sorted(self._verified))
        fields: dict[str, Any] = {"findings": tuple(map(asdict, found)), "verified_kv_heads": heads}
        fields["without_lse"] = self._without_lse
        if not verification.passed:
            return Result(Status.WRONG, "; ".join(map(str, verification.failures)), fields)
        doubts = [
            f"rank {rank}, {way} steps: {fault}"
            for way, clocks in self._clocks.items()
            for rank, fault in enumerate(self._world.everyone(clocks.fault()))
            if fault
        ]
        doubts += [
            f"rank {rank}: {objection}" for rank, objection in enumerate(self._world.everyone(self._held)) if objection
        ]
        fields |= self._times()
        return Result(
            Status.SUSPECT if doubts else Status.OK, "; ".join(doubts), fields if self._world.rank == 0 else {}
        )

    def _load(self) -> None:
        task = self._task
        self._instruments.announce("load")
        if task.case.parallel is None:
            kernel = RemoteKernel(self._instruments.workers, task.case.kernel, task.distributions)
            kernel.load()
            self._latency = kernel.latency
        else:
            # Only ranks import torch.distributed.
            from longca_bench.measuring.remote_strategy import RemoteStrategy

            strategy = RemoteStrategy(self._instruments, task)
            strategy.load()
            self._latency = strategy.latency
        self._clocks = {way: self._new_clocks() for way in Way}

    def _give_back(self) -> None:
        """Gives memory of this process that nothing is in back to the device, where the worker needs it."""
        self._instruments.workers.trim()
        self._world.give_back()

    def _window(self, steps: range) -> tuple[Finding, ...]:
        """The worst findings of some steps, made in every way."""
        self._instruments.announce("inputs")
        shards = [self._shard(step) for step in steps]
        landings = [shard.landing(Direction.FORWARD) | shard.landing(Direction.BACKWARD) for shard in shards]
        landed = [sum(there.nbytes for there in landing.values()) for landing in landings]
        held = (shard.nbytes + 2 * nbytes for shard, nbytes in zip(shards, landed, strict=True))  # the worker's too
        self._step_bytes = max(self._step_bytes, *held)
        self._world.give_back()  # a reference takes most of a device's memory
        found: list[tuple[Finding, ...]] = []
        for way in Way:  # the fixed steps come first, and compile what the others need
            self._instruments.announce("time")
            made = self._make(way, steps, shards, landings)
            self._instruments.announce("verify")
            for shard, landing in zip(shards, landings, strict=True):
                results = given_results(landing, optional_lse=self._task.optional_lse)
                self._without_lse |= "lse" not in results
                mine = [*shard.check(results), *shard.changed_inputs()]
                if shard.checksums.is_complete:
                    mine += shard.check_rows(results, self._random)
                shard.checksums.is_complete = True
                named = tuple(each.named(f"{each.tensor} of {way} steps") for each in mine)
                found += self._world.everyone(named, tuple[Finding, ...])
            self._world.give_back()
        found.append(self._meet_new_work(made, steps, shards, landings))
        return worst(found)

    def _shard(self, step: int) -> Shard:
        """This rank's tokens of a step, with the reference of its mask."""
        problem = self._problem.with_mask(self._masks[step])
        shared = self._inputs.made(self._task.case, problem, Turn(self._turn + step, len(self._masks)))
        heads = shared.verified_kv_heads
        self._verified |= set(range(problem.num_heads_kv) if heads is None else heads)
        self._verified_all &= heads is None
        arena = self._instruments.workers.arena
        return Shard(problem, self._sharings[step], shared, self._world, arena, self._task.rough_lse)

    def _make(self, way: Way, steps: range, shards: Sequence[Shard], landings: Sequence[Results]) -> _Made:
        """Makes the steps of a window in one way, on a quiet machine if that was asked, and notes their seconds."""

        def measure() -> _Made:
            for shard in shards:
                shard.draw(self._random)
                shard.write(*_INPUTS)
            made = self._run(way, steps, shards, landings)
            fixed = made.seconds if way is Way.FIXED else self._seconds[Way.FIXED][-len(steps) :]
            return replace(made, samples=tuple(mine / one for mine, one in zip(made.seconds, fixed, strict=True)))

        made, noise = quietly(measure, self._world, self._ours, self._wait)
        self._wait = max(0.0, self._wait - noise.get("waited", 0.0))
        self._noise.append(noise)
        if way is Way.FIXED:
            self._seconds["plan"] += self._slowest(made.taken, len(steps))
            self._peak = max(filter(None, (self._peak, made.taken.answer.peak)), default=None)
            self._moved_by = ",".join(f"{axis}={transport}" for axis, transport in made.taken.answer.moved_by.items())
        self._seconds[way] += made.seconds
        self._clocks[way].take(sum(made.heard.answer.steps), made.heard, made.handling)
        return made

    def _meet_new_work(
        self, made: _Made, steps: range, shards: Sequence[Shard], landings: Sequence[Results]
    ) -> tuple[Finding, ...]:
        """The worst findings of the steps on inputs that nobody has met. They must be as fast as prefetched ones.

        Args:
            made: The prefetched steps of the window.
            steps: The steps.
            shards: This rank's tokens of each step.
            landings: The places of each step's results.
        """
        found: list[tuple[Finding, ...]] = []

        def attempt() -> tuple[Heard, float]:
            self._instruments.announce("time")
            for shard in shards:
                shard.write_new(self._random, *_INPUTS)
            new = self._run(Way.PREFETCHED, steps, shards, landings)
            self._instruments.announce("verify")
            for number in self._random.sample(range(len(shards)), min(COMPARED, len(shards))):
                shard, landing = shards[number], landings[number]
                results = given_results(landing, optional_lse=self._task.optional_lse)
                forward = {name: landing[name] for name in ("out", "lse")}
                mine = shard.check_new(results, forward, self._random)
                named = tuple(each.named(f"{each.tensor} of new inputs") for each in mine)
                found.extend(self._world.everyone(named, tuple[Finding, ...]))
            self._world.give_back()
            said = new.heard.answer.model_copy(update={"seconds": sum(new.seconds)})
            return replace(new.heard, answer=said), new.handling

        # The window is one call, whose clock is that of the prefetched steps.
        clocks, is_disturbed = self._new_clocks(), disturbed(self._world.device.type, self._ours)
        clocks.take(sum(made.heard.answer.steps), made.heard, made.handling)
        sample = sum(self._seconds[Way.PREFETCHED][-len(steps) :])
        objection = clocks.hold(
            1, attempt, is_disturbed, lambda fast: all(self._world.everyone(fast)), sample, attempts=MANY_ATTEMPTS
        )
        self._held = self._held or objection
        return worst(found)

    def _run(self, way: Way, steps: range, shards: Sequence[Shard], landings: Sequence[Results]) -> _Made:
        """Makes the steps of a window in one way, on the inputs that are there."""
        masks = tuple(cold(self._masks[step % len(self._masks)]) for step in range(steps.start, steps.stop + 1))
        tensors = tuple({name: self._place(getattr(shard.inputs, name)) for name in _INPUTS} for shard in shards)
        taken = self._worker.ask(TakeStream(self._setting, way, masks, tensors))
        self._refuse(_change("planning or a first step", taken))
        self._world.synchronize()
        start = time.perf_counter()
        for there in chain(*(landing.values() for landing in landings)):
            there.fill_(torch.nan)
        self._world.synchronize()
        handling = time.perf_counter() - start
        self._world.everyone(None)  # all judges give their commands at once, so their clocks can be compared
        places = tuple({name: self._place(there) for name, there in landing.items()} for landing in landings)
        heard = self._worker.ask(RunStream(places))
        return _Made(taken, heard, handling, tuple(self._slowest(heard, len(steps))))

    def _slowest(self, heard: Heard, count: int) -> list[float]:
        """The seconds of each step on the slowest rank."""
        said = heard.answer.steps
        fault = f"it gave {len(said)} times for {count} steps" if len(said) != count else ""
        self._refuse(fault or _change("a step", heard))
        return list(map(max, zip(*self._world.everyone(said), strict=True)))

    def _refuse(self, fault: str) -> None:
        """Ends the case if a rank has a fault."""
        if faults := [each for each in self._world.everyone(fault) if each]:
            raise CaseEndError(Status.WRONG, faults[0])

    def _new_clocks(self) -> Clocks:
        return Clocks.begin(self._world.device, self._latency)

    def _place(self, tensor: torch.Tensor) -> Any:
        return self._worker.place(tensor)

    @property
    def _setting(self) -> StreamSetting:
        case, parallel = self._task.case, self._task.case.parallel
        alone = StreamSetting(case.kernel, self._layers, case.allow_unverified)
        if parallel is None:
            return alone
        about: dict[str, Any] = {"mesh": parallel.mesh, "transport": parallel.transport}
        return replace(alone, strategy=parallel.strategy, placement=self._task.placed, **about)

    def _times(self) -> dict[str, Any]:
        """The times for the record."""
        shared = [self._problem.with_mask(mask) for mask in self._masks]
        uneven = [imbalance(each, sharing.layout) for each, sharing in zip(shared, self._sharings, strict=True)]
        seconds = {str(name): tuple(found) for name, found in self._seconds.items()}
        noise, peaks, moved = zip(*self._world.everyone((self._noise, self._peak, self._moved_by)), strict=True)
        watched = [each for rank in noise for each in rank]
        machine = next((each for each in watched if each["busy"]), watched[0])
        if waits := [each for each in self._noise if "waited" in each]:
            about = {"waited": sum(each["waited"] for each in waits), "measured": max(w["measured"] for w in waits)}
            machine = {**machine, **about}
        known = tuple(peak for peak in peaks if peak is not None)
        return {
            "machine": machine,
            "peak_bytes": max(known, default=None),
            "rank_peak_bytes": known if self._world.size > 1 else (),
            "moved_by": "|".join(dict.fromkeys(moved)) or None,
            "samples": seconds[Way.PREFETCHED],
            "median": median(seconds[Way.PREFETCHED]),
            "plan_seconds": median(seconds["plan"]),
            "area_imbalance": sum(uneven) / len(uneven),
            "clocks": self._clocks[Way.PREFETCHED].fields(),
            "stream": {"layers": self._layers, "imbalance": tuple(uneven), **seconds},
        }


def _change(what: str, heard: Heard) -> str:
    """The global state that a worker's steps changed, as a clause, or an empty text."""
    return f"{what} changes global state: {', '.join(heard.answer.changed)}" if heard.answer.changed else ""


def _on_one(problem: Problem) -> Layout:
    """The layout of one device, which holds everything."""
    tokens = ((0, problem.concrete_mask.seqlen_q),)
    step = Step(tokens, tokens, (0, problem.heads_q), (0, problem.num_heads_kv))
    return Layout(((step,),), (tokens,))
