"""The worker of a rank: it joins the other ranks' workers, and calls strategies as its rank commands.

A strategy, its kernel and the collectives between them run here. Every rank compares the results and holds a clock, as
on one device.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longca import plugins
from longca.manifests import Direction, Layout, Problem, Transport
from longca.parallel.pushes import note_pushing, watched
from longca.parallel.strategy import Strategy, StrategyPlan, constructed, moved_by, transport_of
from longca.plain_text import plain_text
from longca_bench.measuring.commands import (
    ALL,
    COMPUTE,
    MOST_BYTES,
    WHOLE,
    Answer,
    Call,
    Mode,
    Part,
    PlanFacts,
    Traffic,
)
from longca_bench.measuring.messages import Place
from longca_bench.measuring.timing import calls_in_a_row, timed_call
from longca_bench.measuring.traffic import Collective, Recorder, repeat
from longca_bench.measuring.watched_kernel import Marks, WatchedKernel
from longca_bench.ranks.world import JobWorld
from longca_bench.suites.meshes import MeshAxes

if TYPE_CHECKING:
    from longca_bench.measuring.worker_process import WorkerProcess

__all__ = ["RankWorker", "added_up"]


@dataclass
class _Planned:
    """A strategy with its plan, the kernel that it calls, and the tensors that its forward kept."""

    number: int
    strategy: Strategy
    plan: StrategyPlan
    kernel: WatchedKernel
    kept: list[Tensor] | None = None


class RankWorker:
    """The part of a worker that only ranks have."""

    def __init__(self, worker: WorkerProcess, device: torch.device, place: Place, number: int, marks: int) -> None:
        here = os.open(f"/proc/{os.getppid()}/fd/{marks}", os.O_RDWR)
        self._worker, self._marks = worker, Marks(here)
        os.close(here)
        note_pushing(self._marks.pushing)
        # The monitor of NCCL would end a worker that its rank had stopped for minutes.
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        self.world = JobWorld(device, place, number)
        self._strategies: dict[str, Callable[[Any], Strategy]] = {}
        self._planned: _Planned | None = None
        self._repeats: dict[str, Callable[[], object]] = {}
        self.commands: dict[str, Callable[..., Answer]] = {
            "load_strategy": self._load,
            "plan_strategy": self._plan,
            "call_strategy": self._call,
            "record": self._record,
            "repeat": self._repeat,
        }

    def _load(self, name: str) -> Answer:
        before = self._worker.watch()
        self._strategies[name] = plugins.registry().load_strategy(name)
        return Answer(changed=before.changed())

    def _plan(
        self,
        number: int,
        kernel_name: str,
        name: str,
        axes: MeshAxes,
        placement: str,
        asked: Transport,
        problem: Problem,
        wanted: Layout,
    ) -> Answer:
        """Makes a strategy's plan and keeps it. The plan before it is not needed any more."""
        self._planned = None
        self._repeats.clear()
        mesh = self.world.mesh(axes)
        kernel = WatchedKernel(self._worker.kernel(kernel_name), self._marks, self.world.device)
        self.world.look = kernel.look
        self.world.synchronize()
        before, start = self._worker.watch(), time.perf_counter()
        layout = plugins.registry().layout(name, problem, dict(axes), placement)
        laid_out = time.perf_counter()
        manifest = plugins.registry().strategy(name)
        transport = transport_of(asked, manifest)
        strategy = constructed(self._strategies[name], manifest, mesh, transport)
        made = time.perf_counter()
        plan = strategy.plan(problem, wanted, kernel)
        self.world.synchronize()
        seconds = time.perf_counter() - made
        fault, nbytes = "", plan.metadata_bytes
        if layout != wanted:
            fault = "the layout differs from the layout that the same function gave before"
        elif type(nbytes) is not int or not 0 <= nbytes <= MOST_BYTES:
            fault = f"the plan's metadata_bytes is {plain_text(repr(nbytes), 40)}"
        self._planned = _Planned(number, strategy, plan, kernel)
        facts = PlanFacts(form="", form_text="", backend="", metadata_bytes=0 if fault else nbytes, fault=fault)
        moved, changed, laid_out = moved_by(strategy, manifest), before.changed(), laid_out - start
        return Answer(seconds=seconds, layout_seconds=laid_out, plan=facts, moved_by=moved, changed=changed)

    def _call(self, asked: Call) -> Answer:
        planned = self._of(asked)
        tensors, landing = self._worker.tensors(asked.tensors), self._worker.tensors(asked.landing)
        call = self._ready(planned, asked, tensors)
        if asked.mode is not Mode.PLAIN:
            return self._worker.made(asked, call, self.world, tensors, {}, landing)
        with planned.kernel.waiting(self.world.synchronize):
            answer = self._worker.made(asked, call, self.world, tensors, {}, landing)
        return answer.model_copy(update={"kept": asked.keeps and bool(planned.kept)})

    def _record(self, asked: Call, part: Part) -> Answer:
        """Notes a part of a call, to repeat it."""
        planned, before = self._of(asked), self._worker.watch()
        call = self._ready(planned, asked, self._worker.tensors(asked.tensors))
        if part is Part.COMPUTING:
            with planned.kernel.kept() as calls:
                call()

            def compute() -> None:
                for each in calls:
                    each()

            self._repeats = {WHOLE: call, COMPUTE: compute}
            return Answer(changed=before.changed())
        with planned.kernel.silent(), watched() as pushes, Recorder() as recorder:
            call()  # in silence, because kernel libraries may not bear a recorder
        recorder.add(pushes)
        self.world.synchronize()
        by_kind: dict[str, list[Collective]] = defaultdict(list)
        for collective in recorder.collectives:
            by_kind[collective.kind].append(collective)
        self._repeats |= {kind: partial(repeat, some) for kind, some in by_kind.items()}
        self._repeats[ALL] = partial(repeat, recorder.collectives)
        traffic = {kind: added_up(some) for kind, some in by_kind.items()}
        return Answer.model_validate({"traffic": traffic, "changed": before.changed()})

    def _repeat(self, what: str, load: int = 0) -> Answer:
        """Times a part, or loads the device with it. A rank without collectives of a kind meets the barrier alone."""
        assert self._planned is not None, "parts are noted of a planned strategy"
        self._planned.kernel.restart()
        part = self._repeats.get(what, lambda: None)
        if load:
            calls_in_a_row(part, load, self.world)
            return Answer()
        seconds, _ = timed_call(part, self.world)
        self._worker.tell_end()
        return Answer(seconds=seconds)

    def _of(self, asked: Call) -> _Planned:
        assert self._planned is not None, "a strategy is planned before it is called"
        assert self._planned.number == asked.plan, "the latest plan is called"
        return self._planned

    def _ready(self, planned: _Planned, asked: Call, tensors: dict[str, Tensor]) -> Callable[[], Any]:
        """The strategy's own call."""
        strategy: Any = planned.strategy  # tensors come in the contract's order
        given = (*tensors.values(), planned.plan)
        planned.kernel.restart()
        if asked.direction is Direction.BACKWARD:
            return partial(strategy.backward, *given, kept=planned.kept)
        if not asked.keeps:
            return partial(strategy.forward, *given)
        planned.kept = []
        return partial(strategy.forward, *given, kept=planned.kept)


def added_up(collectives: list[Collective]) -> Traffic:
    """The number and the sizes of collectives."""
    sizes, sent = zip(*((each.size, each.sent) for each in collectives), strict=True)
    return Traffic(calls=len(collectives), size=sum(sizes), sent=sum(sent))
