"""The trial of a kernel on one device. The kernel runs in a worker, and everything else in this process.

Between calls the inputs change (`longca_bench.verification.change`), so each call is new work. The results of each
timed call are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any

import torch
from torch import Tensor

from longca.errors import LongCAError
from longca.manifests import Direction
from longca_bench.measuring.clocks import Clocks
from longca_bench.measuring.commands import Mode
from longca_bench.measuring.remote_kernel import Ran, RemoteKernel, RemotePlan, arguments_of, empty_results
from longca_bench.measuring.results import NAMES, ContractError
from longca_bench.measuring.shares import SharedInputs
from longca_bench.measuring.timing import LEAST, Timing, loading_calls
from longca_bench.measuring.world import Instruments
from longca_bench.suites.tasks import Task
from longca_bench.verification.change import Change
from longca_bench.verification.findings import (
    CHANGED,
    Finding,
    Verification,
    check_values,
    findings_of,
    given_results,
    same_bits,
    wrong,
)
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.rows import Checksums
from longca_bench.verification.tokens import parts
from longca_bench.verification.verify import Means, check_backward, check_counts, check_forward

__all__ = ["KernelTrial", "WrongResultError"]


class WrongResultError(LongCAError):
    """A timed call is wrong. `found` has the findings."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings)))
        self.found = Verification(tuple(findings))


class KernelTrial:
    """A kernel on one set of tensors, `inputs`, which the kernel reaches and no other trial uses."""

    _clocks: Clocks

    def __init__(
        self, kernel: RemoteKernel, plan: RemotePlan, task: Task, shared: SharedInputs, instruments: Instruments
    ) -> None:
        assert shared.expected is not None, "one device verifies heads"
        arena = instruments.workers.arena
        given, is_forward = shared.inputs, plan.problem.direction == "forward"
        dout = given.dout if is_forward else arena.like(given.dout)  # a forward's worker needs none
        mine = Inputs(arena.like(given.q), arena.like(given.k), arena.like(given.v), dout)
        self.problem, self.inputs, self.expected = plan.problem, mine, shared.expected
        self._kernel, self._plan, self._given = kernel, plan, given
        self._rough_lse, self._without_lse, self._instruments = task.rough_lse, task.optional_lse, instruments
        self._change = Change.first(plan.problem)
        self._change.apply(given, mine, with_dout=not is_forward)
        self._checksums = Checksums(given.q.dtype, rough_lse=task.rough_lse)
        self._forward: dict[str, Tensor] = {}
        self._verified: dict[str, Tensor] = {}
        self._landing: dict[str, Tensor] = {}
        self._right: dict[str, Tensor] = {}
        self._last = 0.0
        self.fields = {
            "form": plan.form_text,
            "backend": plan.backend,
            "metadata_bytes": plan.metadata_bytes,
            "plan_seconds": plan.seconds,
            "verified_kv_heads": shared.verified_kv_heads,
        }

    @property
    def is_forward(self) -> bool:
        """Whether the forward is measured, and not the backward."""
        return self.problem.direction == "forward"

    def verify(self) -> Verification:
        """Verifies results in poisoned buffers, and that the kernel leaves its inputs alone."""
        kernel, plan, x, means = self._kernel, self._plan, self.inputs, self._means
        about = {"rough_lse": self._rough_lse, "optional_lse": self._without_lse}
        found, *forward = check_forward(kernel, plan, x, self.expected, means, **about)
        self._without_lse &= found.passed and all(finding.tensor != "lse" for finding in found.findings)
        self.fields["without_lse"] = self._without_lse
        if not self.is_forward and found.passed:
            self._forward = dict(zip(NAMES[Direction.FORWARD], forward, strict=True))
            self._verified = {name: self._change.undo(name, result) for name, result in self._forward.items()}
            self._write_forward()
            found += self._check_backward()
        return found

    def verify_again(self) -> Verification:
        """Verifies the direction alone. A backward keeps the results of the forward that was verified."""
        self.change()
        return self.verify() if self.is_forward else self._check_backward()

    def _check_backward(self) -> Verification:
        out, lse = self._forward.values()
        return check_backward(self._kernel, self._plan, self.inputs, out, lse, self.expected, self._means)

    def check_counts(self) -> Verification:
        """Verifies the counts of visible keys."""
        if self._without_lse:
            return Verification(())
        means = replace(self._means, read=self._change.undo)  # no checksum is of q = 0
        return check_counts(self._kernel, self._plan, self.inputs, means)

    def change(self) -> None:
        """Changes the inputs, and the forward's results with them."""
        self._change = Change.draw(self.problem, self._change)
        self._change.apply(self._given, self.inputs, with_dout=not self.is_forward)
        if not self.is_forward:
            self._write_forward()

    def _write_forward(self) -> None:
        """Writes a backward's out and lse for the changed inputs."""
        for name, there in self._forward.items():
            self._change.write(name, self._verified[name], there)

    def sample(self) -> tuple[float, dict[str, Tensor]]:
        """The seconds and the results of a timed call on changed inputs."""
        self._load()
        self._renew()
        ran = self._run(Mode.TIMED)
        seconds = self._last = ran.reply.sample
        if late := self._clocks.take(seconds, ran.reply.seconds, ran.reply.answer.late):
            raise WrongResultError([wrong(next(iter(self._landing)), late)])
        return seconds, ran.results

    def _renew(self) -> None:
        """Changes the inputs, and takes away the results of the last call."""
        self.change()
        x, arena = self.inputs, self._instruments.workers.arena
        self._landing = self._landing or empty_results(arena, x.q, x.k, x.v, NAMES[self.problem.direction])
        for there in self._landing.values():
            there.fill_(torch.nan)

    def inspect(self, results: dict[str, Tensor]) -> None:
        """Checks the results of a timed call. Wrong ones raise WrongResultError."""
        # All rows are compared: it costs little, and a device that rests between calls has higher clocks.
        found = list[Finding]()
        for name, result in given_results(results, optional_lse=self._without_lse).items():
            there = self._read(name, result)
            if name in self._right and same_bits(there, self._right[name]):
                continue
            checked = check_values({name: there}, self.expected, rough_lse=self._rough_lse)
            found += checked.placed(self._change.place).failures
            if self.expected.sample is None:
                self._right[name] = there  # results with these bits are right
        if self.expected.sample is not None:
            found += self._checksums.check(results, self._change)
        found += self._changed_inputs()
        if found:
            raise WrongResultError(_of_timed(found))

    def _changed_inputs(self) -> list[Finding]:
        """The arguments of the last call that the kernel changed."""
        return [
            wrong(name, CHANGED)
            for name, there in self._tensors.items()
            if not all(same_bits(self._as_given(name, some), there[some]) for some in parts(there))
        ]

    def _as_given(self, name: str, some: slice) -> Tensor:
        """A part of a tensor as the last call was given it, made from memory that the kernel does not reach."""
        given = self._verified[name] if name in self._verified else getattr(self._given, name)
        if name == "lse":
            return self._change.made(name, given)[some]  # its first dimension is of heads, which change places
        return given[some] if self.is_forward and name == "dout" else self._change.made(name, given[some])

    def before_timing(self) -> dict[str, Any]:
        """Nothing is measured. The clocks begin, or begin anew."""
        self._clocks = Clocks(self._instruments.workers.arena.device)
        return {}

    def peaks(self) -> tuple[int, ...]:
        """The peak of memory during one call. Empty on CPUs."""
        self._checksums.is_complete = True  # of the first verification
        if self._instruments.world.device.type == "cpu":
            return ()
        peak = self._run(Mode.PEAK).reply.answer.peak
        return () if peak is None else (peak,)

    def wall(self, timing: Timing) -> tuple[float, ...]:
        """The times by the host's clock, of calls that are new work and checked as the samples are."""
        if self._instruments.world.device.type == "cpu":
            return timing.samples
        return tuple(self._walled() for _ in range(LEAST))

    def _walled(self) -> float:
        """The seconds of a call on changed inputs by the host's clock."""
        self._renew()
        ran = self._run(Mode.WALL)
        self.inspect(ran.results)
        return ran.reply.sample

    def after_timing(self, timing: Timing, peaks: tuple[int, ...]) -> dict[str, Any]:
        """The clocks of the worker and of this process, and this process's own memory on the device."""
        arena = self._instruments.workers.arena
        taken = torch.cuda.max_memory_reserved() + arena.nbytes if arena.device.type == "cuda" else None
        return {"clocks": self._clocks.fields(), "judge_bytes": taken}

    def suspicion(self, *, busy: bool) -> str:
        """The disagreement of the two clocks, or an empty text."""
        return self._clocks.fault(busy=busy)

    def _read(self, name: str, result: Tensor) -> Tensor:
        """A result as the reference has it. The first verification's results give the checksums."""
        there = self._change.undo(name, result)
        if self.expected.sample is not None and not self._checksums.is_complete:
            self._checksums.keep(name, there)
        return there

    @property
    def _means(self) -> Means:
        """Kept nowhere: a trial that refers to itself would keep its tensors until the next collection of garbage."""
        arena = self._instruments.workers.arena
        return Means(arena.empty, self._read, self._change.place, self._as_given)

    @property
    def _tensors(self) -> dict[str, Tensor]:
        """The arguments of a call, by their names."""
        return arguments_of(self.problem.direction, self.inputs, self._forward)

    def _load(self) -> None:
        """Keeps a CUDA device as busy as calls in a row do, before the inputs change, so that no call knows them.

        These calls are not checked. Their number varies, or a kernel that is wrong in every seventh call might be so
        only among them.
        """
        times = loading_calls(self._last)
        if times and self._instruments.world.device.type != "cpu":
            times += SystemRandom().randrange(2 + times // 8)
            self._run(Mode.LOAD, times=times)

    def _run(self, mode: Mode, **how: Any) -> Ran:
        about = self.problem.direction, self._tensors, self._plan
        try:
            return self._kernel.run(*about, mode=mode, landing=self._landing or None, **how)
        except ContractError as error:
            raise WrongResultError(_of_timed(findings_of(error))) from None


def _of_timed(found: Sequence[Finding]) -> list[Finding]:
    return [finding.named(f"{finding.tensor} of a timed call") for finding in found]
