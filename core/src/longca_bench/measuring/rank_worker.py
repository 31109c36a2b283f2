"""The worker of a rank: it joins the other ranks' workers, and calls strategies as its rank commands.

A strategy, its kernel and the collectives between them run here. The kernel is watched: its calls are marked in memory
that the rank reads, so a rank that does not return from one is known. Every rank compares results and holds a clock.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longca import plugins
from longca.kernels.base import Kernel, Plan
from longca.kernels.sinks import sinks_gradient
from longca.manifests import Direction, Layout, Problem, Transport
from longca.parallel.pushes import note_pushing, watched
from longca.parallel.strategy import Strategy, StrategyPlan, constructed, moved_by, transport_of
from longca.plain_text import plain_text
from longca_bench.measuring.commands import ALL, COMPUTE, MOST_BYTES, WHOLE, Answer, Call, Mode, PlanFacts, Traffic
from longca_bench.measuring.messages import PUSHING, Place
from longca_bench.measuring.timing import calls_in_a_row, timed_call
from longca_bench.measuring.traffic import Collective, Recorder, repeat
from longca_bench.ranks.world import JobWorld
from longca_bench.suites.meshes import MeshAxes
from longca_bench.verification.sinks import sinks_like
from longca_bench.verification.verify import lse_dtype

if TYPE_CHECKING:
    from longca_bench.measuring.worker_process import WorkerProcess

__all__ = ["Marks", "RankWorker", "WatchedKernel", "added_up"]

#: Methods of a kernel by their marks, and the pushes of a transport.
_INSIDE = ("", "forward", "backward", PUSHING)
_FORWARD, _BACKWARD = 1, 2


class Marks:
    """The method of a kernel that a rank is inside, or that it makes pushes, in memory that its rank reads."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)

    def set(self, number: int) -> None:
        """Notes a method by its number, or 0 for none."""
        self._memory[0] = number

    def pushing(self, begins: bool) -> None:
        """Notes that the transport begins pushes, or ends them."""
        self.set(_INSIDE.index(PUSHING) if begins else 0)

    def read(self) -> str:
        """The name of the noted method, or `push`, or an empty text."""
        return _INSIDE[self._memory[0] % len(_INSIDE)]


class WatchedKernel:
    """A stand-in for a kernel, with the methods of `longca.kernels.base.Kernel`, which marks each call.

    On CUDA devices events around each call do so too, because a call ends there before its work does.
    """

    def __init__(self, kernel: Kernel, marks: Marks, device: torch.device) -> None:
        self._kernel, self._marks, self._device = kernel, marks, device
        self._inside: list[int] = []  # the methods since the strategy's call began
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # which later calls use again
        self._synchronize: Callable[[], None] | None = None
        self._kept: list[Callable[[], object]] | None = None
        self._is_silent = False

    def plan(self, problem: Problem) -> Plan:
        """The kernel's own plan."""
        return self._kernel.plan(problem)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, **buffers: Any) -> Any:
        """The kernel's own forward, or zeros."""
        if self._is_silent:
            tokens, heads, _ = q.shape
            shapes = {"out": ((tokens, heads, v.shape[2]), q.dtype), "lse": ((heads, tokens), lse_dtype(q))}
            return _zeros(shapes, q, buffers)
        return self._call(_FORWARD, q, k, v, plan, **buffers)

    def backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **buffers: Any) -> Any:
        """The kernel's own backward, or zeros."""
        if self._is_silent:
            shapes = {name: (x.shape, x.dtype) for name, x in (("dq", q), ("dk", k), ("dv", v))}
            return _zeros(shapes, q, buffers)
        return self._call(_BACKWARD, dout, q, k, v, *rest, **buffers)

    def restart(self) -> None:
        """Forgets earlier calls, before a call of the strategy."""
        self._inside.clear()

    def look(self) -> None:
        """Marks the call that the CUDA device is inside, while its host waits."""
        calls = zip(self._inside, self._events, strict=False)
        self._marks.set(next((number for number, (begin, end) in calls if begin.query() and not end.query()), 0))

    @contextmanager
    def waiting(self, synchronize: Callable[[], None]) -> Iterator[None]:
        """Waits for the device before and after every call, so that an error is raised in the call that made it."""
        self._synchronize = synchronize
        try:
            yield
        finally:
            self._synchronize = None

    @contextmanager
    def kept(self) -> Iterator[list[Callable[[], object]]]:
        """Keeps every call with its tensors, to make it again."""
        calls: list[Callable[[], object]] = []
        self._kept = calls
        try:
            yield calls
        finally:
            self._kept = None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Makes calls return their buffers unchanged, without computing."""
        self._is_silent = True
        try:
            yield
        finally:
            self._is_silent = False

    def _call(self, number: int, *arguments: Any, **buffers: Any) -> Any:
        method = self._kernel.forward if number == _FORWARD else self._kernel.backward
        if self._kept is not None:
            self._kept.append(partial(self._call, number, *arguments, **buffers))
        if self._synchronize is not None:
            self._synchronize()
        elif self._device.type == "cuda":
            return self._call_on_cuda(number, method, *arguments, **buffers)
        self._marks.set(number)
        result: Any = method(*arguments, **buffers)
        if self._synchronize is not None:
            self._synchronize()
        self._marks.set(0)
        return result

    def _call_on_cuda(self, number: int, method: Callable[..., Any], *arguments: Any, **buffers: Any) -> Any:
        if len(self._inside) == len(self._events):
            self._events.append((torch.cuda.Event(), torch.cuda.Event()))
        begin, end = self._events[len(self._inside)]
        begin.record()
        self._marks.set(number)
        result = method(*arguments, **buffers)
        self._marks.set(0)
        end.record()
        self._inside.append(number)
        return result


def _zeros(wanted: dict[str, Any], q: Tensor, buffers: dict[str, Any]) -> tuple[Tensor, ...]:
    return tuple(
        torch.zeros(shape, dtype=dtype, device=q.device) if buffers.get(name) is None else buffers[name]
        for name, (shape, dtype) in wanted.items()
    )


@dataclass
class _Planned:
    """A strategy with its plan, the kernel that it calls, and the tensors that its forward kept."""

    strategy: Strategy
    plan: StrategyPlan
    kernel: WatchedKernel
    sinks: bool = False
    kept: list[Tensor] | None = None


class RankWorker:
    """The part of a worker that only ranks have. `marks` is the descriptor of its marks in the rank's process."""

    def __init__(self, worker: WorkerProcess, device: torch.device, place: Place, number: int, marks: int) -> None:
        here = os.open(f"/proc/{os.getppid()}/fd/{marks}", os.O_RDWR)
        self._worker, self._marks = worker, Marks(here)
        os.close(here)
        note_pushing(self._marks.pushing)
        # The monitor of NCCL would end a worker that its rank had stopped for minutes.
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        self.world = JobWorld(device, place, number)
        self._strategies: dict[str, Callable[[Any], Strategy]] = {}
        self._latest: _Planned | None = None
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
        kernel_name: str,
        name: str,
        axes: MeshAxes,
        placement: str,
        asked: Transport,
        problem: Problem,
        wanted: Layout,
    ) -> Answer:
        """Makes a strategy's plan and keeps it. The plan before it is not needed any more."""
        self._latest = None
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
        self._latest = _Planned(strategy, plan, kernel, problem.sinks)
        facts = PlanFacts(metadata_bytes=0 if fault else nbytes, fault=fault)
        moved, changed, laid_out = moved_by(strategy, manifest), before.changed(), laid_out - start
        return Answer(seconds=seconds, layout_seconds=laid_out, plan=facts, moved_by=moved, changed=changed)

    def _call(self, asked: Call) -> Answer:
        planned, tensors, landing = self._planned, *map(self._worker.tensors, (asked.tensors, asked.landing))
        call = self._ready(asked, tensors)
        if asked.mode is not Mode.PLAIN:
            return self._worker.made(asked, call, self.world, tensors, {}, landing)
        with planned.kernel.waiting(self.world.synchronize):
            answer = self._worker.made(asked, call, self.world, tensors, {}, landing)
        return answer.model_copy(update={"kept": asked.keeps and bool(planned.kept)})

    def _record(self, asked: Call) -> Answer:
        """Notes the computing and the communication of a call, to repeat each of them."""
        kernel, before = self._planned.kernel, self._worker.watch()
        call = self._ready(asked, self._worker.tensors(asked.tensors))
        with kernel.kept() as calls:
            call()

        def compute() -> None:
            for each in calls:
                each()

        # In silence, because kernel libraries may not bear a recorder.
        with kernel.silent(), watched() as pushes, Recorder() as recorder:
            call()
        recorder.add(pushes)
        self.world.synchronize()
        by_kind: dict[str, list[Collective]] = defaultdict(list)
        for collective in recorder.collectives:
            by_kind[collective.kind].append(collective)
        parts = {ALL: recorder.collectives, **by_kind}
        self._repeats = {WHOLE: call, COMPUTE: compute, **{name: partial(repeat, some) for name, some in parts.items()}}
        traffic = {kind: added_up(some) for kind, some in by_kind.items()}
        return Answer.model_validate({"traffic": traffic, "changed": before.changed()})

    def _repeat(self, what: str, load: int = 0) -> Answer:
        """Times a part, which a rank without such collectives only meets, or loads the device with so many calls in a
        row.
        """
        self._planned.kernel.restart()
        part = self._repeats.get(what, lambda: None)
        if load:
            calls_in_a_row(part, load, self.world)
            return Answer()
        seconds, _ = timed_call(part, self.world)
        self._worker.tell_end()
        return Answer(seconds=seconds)

    @property
    def _planned(self) -> _Planned:
        assert self._latest is not None, "a strategy is planned before it is called"
        return self._latest

    def _ready(self, asked: Call, tensors: dict[str, Tensor]) -> Callable[[], Any]:
        """The strategy's own call."""
        planned = self._planned
        strategy: Any = planned.strategy  # tensors come in the contract's order
        given = (*tensors.values(), planned.plan)
        planned.kernel.restart()
        if asked.direction is Direction.BACKWARD:
            backward = partial(strategy.backward, *given, kept=planned.kept)
            return partial(_with_sinks_gradient, backward, tensors) if planned.sinks else backward
        if asked.keeps:
            planned.kept = []
        more: dict[str, Any] = {"kept": planned.kept} if asked.keeps else {}
        more |= {"sinks": sinks_like(tensors["q"])} if planned.sinks else {}
        return partial(strategy.forward, *given, **more)


def _with_sinks_gradient(backward: Callable[[], Any], tensors: dict[str, Tensor]) -> Any:
    """A strategy's gradients. That of sinks is computed as a caller's is, and not returned."""
    sinks_gradient(tensors["dout"], tensors["out"], tensors["lse"], sinks_like(tensors["q"]))
    return backward()


def added_up(collectives: list[Collective]) -> Traffic:
    """The number and the sizes of collectives."""
    sizes, sent = zip(*((each.size, each.sent) for each in collectives), strict=True)
    return Traffic(calls=len(collectives), size=sum(sizes), sent=sum(sent))
