"""Remote strategies: a strategy with a kernel, in the worker of a rank.

All ranks call the same methods in the same order.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from longca.manifests import Direction, Problem
from longca_bench.measuring.arena import shared_file
from longca_bench.measuring.commands import WHOLE, Call, Mode, Traffic
from longca_bench.measuring.rank_worker import Marks
from longca_bench.measuring.remote_kernel import Ran, RemoteKernel, plan_facts, results_of, said_seconds
from longca_bench.measuring.results import ContractError
from longca_bench.measuring.status import CaseEndError, Status
from longca_bench.measuring.timing import loading_calls
from longca_bench.measuring.worker import Reply
from longca_bench.measuring.world import Instruments, World
from longca_bench.ranks.world import JobWorld
from longca_bench.suites.tasks import Sharing, Task

__all__ = ["RemoteStrategy", "agreed"]

_T = TypeVar("_T")
#: Times its own seconds that a call may take by the rank's clock, to be believed when loading calls are counted.
_BELIEVED = 4


class RemoteStrategy:
    """A strategy with a kernel, in this rank's worker. `kernel` is the kernel alone, in the same worker."""

    def __init__(self, instruments: Instruments, task: Task) -> None:
        world, parallel = instruments.world, task.case.parallel
        assert isinstance(world, JobWorld), "a strategy runs on the ranks of a job"
        assert parallel is not None, "ranks take cases with a strategy"
        assert task.sharing is not None, "ranks share a case"
        self._world, self._task, self._parallel = world, task, parallel
        self.sharing: Sharing = task.sharing
        self._announce, self._worker = instruments.announce, instruments.workers.of(task.distributions)
        self.kernel = RemoteKernel(instruments.workers, task.case.kernel, task.distributions)
        self._last = self._pace = 0.0

    def start(self) -> None:
        """Starts the worker, which joins those of the other ranks. All ranks replace one that a rank must replace."""
        world, worker = self._world, self._worker
        if not any(world.everyone(worker.is_changed or not worker.is_joined)):
            return
        worker.end()
        world.groups += 1
        fd = shared_file("longca-marks", mmap.PAGESIZE)
        marks = Marks(fd)
        worker.call("join", world.place, world.groups, fd)
        os.close(fd)
        worker.is_joined, worker.look = True, lambda: self._announce.inside(marks.read())

    def load(self) -> None:
        """Imports the strategy and its kernel in the worker. A failure, or changed global state, is a CaseEndError."""

        def imported() -> None:
            self._worker.load(self._task.case.kernel)
            self._worker.imports("load_strategy", self._parallel.strategy)

        agreed(self._world, imported, lambda: self._announce("loaded"))

    def plan(self, problem: Problem) -> dict[str, Any]:
        """Plans a problem in the workers of all ranks, which keep the latest plan. Returns fields of the record.

        Times are those of the slowest rank, and bytes those of the rank with the most. A plan that cannot be made, or
        is none, is a CaseEndError.
        """
        parallel, task = self._parallel, self._task
        about = task.case.kernel, parallel.strategy, parallel.mesh, task.placed or "", parallel.transport

        def made() -> tuple[tuple[float, float, int], str]:
            reply = self._worker.call("plan_strategy", *about, problem, self.sharing.layout)
            answer, facts = reply.answer, plan_facts(reply.answer)
            moved_by = ",".join(f"{axis}={transport}" for axis, transport in answer.moved_by.items())
            return (answer.layout_seconds or 0.0, said_seconds(reply), facts.metadata_bytes), moved_by

        mine = agreed(self._world, made, lambda: self._announce("planned"))
        numbers, moved_by = zip(*self._world.everyone(mine), strict=True)
        most = (max(each) for each in zip(*numbers, strict=True))
        fields = dict(zip(("layout_seconds", "plan_seconds", "metadata_bytes"), most, strict=True))
        return {**fields, "moved_by": "|".join(dict.fromkeys(moved_by))}

    def call(
        self,
        direction: Direction,
        tensors: Mapping[str, Tensor],
        landing: Mapping[str, Tensor],
        *,
        mode: Mode = Mode.PLAIN,
        keeps: bool = False,
    ) -> Ran:
        """Makes the worker call the strategy in one direction alone, together with the workers of all ranks.

        Arguments come by their names in the contract's order, and results land in shared tensors. A forward that keeps
        may leave tensors for the backward. It raises what `RemoteKernel.run` raises.
        """
        reply = self._worker.call("call_strategy", self._call(direction, tensors, landing, mode, keeps=keeps))
        if mode is Mode.TIMED:
            self._last = _at_least(reply)
        return Ran(results_of(direction, reply.answer, {}, landing, "strategy"), reply)

    def keep_busy(self, direction: Direction, tensors: Mapping[str, Tensor]) -> None:
        """Makes calls that load CUDA devices, before a timed call on other inputs. All ranks do so together."""
        self._load(lambda times: ("call_strategy", self._call(direction, tensors, {}, Mode.LOAD, times=times)))

    def _load(self, command: Callable[[int], tuple[str, *tuple[object, ...]]]) -> None:
        """Makes as many calls in a row as load CUDA devices, the same number on all ranks, by the command for them."""
        if self._world.device.type == "cpu":
            return
        last, pace = map(max, zip(*self._world.everyone((self._last, self._pace)), strict=True))
        if times := loading_calls(last, pace):
            self._pace = self._worker.call(*command(times)).seconds / times

    def record(self, direction: Direction, tensors: Mapping[str, Tensor]) -> dict[str, Traffic]:
        """Makes the worker note the parts of a call with this rank's arguments, and returns its collectives."""
        answer = self._worker.call("record", self._call(direction, tensors, {}, Mode.PLAIN)).answer
        return {str(kind): traffic for kind, traffic in answer.traffic.items()}

    def repeat(self, what: str) -> tuple[float, None]:
        """The seconds of a noted part, which the workers of all ranks repeat together, and no result.

        The whole loads the device before every part, so that all parts meet the clocks of calls in a row.
        """
        self._load(lambda times: ("repeat", WHOLE, times))
        reply = self._worker.call("repeat", what)
        if what == WHOLE:
            self._last = _at_least(reply)
        return min(reply.sample, reply.seconds), None

    def _call(
        self, direction: Direction, tensors: Mapping[str, Tensor], landing: Mapping[str, Tensor], mode: Mode, **how: Any
    ) -> Call:
        there, back = ({name: self._worker.place(x) for name, x in each.items()} for each in (tensors, landing))
        return Call(direction, mode, there, back, **how)


def _at_least(reply: Reply) -> float:
    """Seconds of a timed call, for the count of calls that load the device. A worker can say too few."""
    return max(reply.sample, reply.seconds / _BELIEVED)


def agreed(world: World, call: Callable[[], _T], announce: Callable[[], None] = lambda: None) -> _T:
    """The result of a call that all ranks make, before `announce`. One that is wrong on a rank is so on all of them."""
    fault, made = "", []
    try:
        made.append(call())
    except ContractError as error:
        fault = str(error)
    except CaseEndError as end:
        if end.status is not Status.WRONG:
            raise
        fault = str(end)
    announce()
    for rank, each in enumerate(world.everyone(fault)):
        if each:
            raise CaseEndError(Status.WRONG, f"{each}, on rank {rank}")
    return made[0]
