"""The process of a worker, which runs the kernels of some distributions as the process that started it commands.

It is called as `python -P -m longca_bench.measuring.worker_process FD`. It gets tensors in shared memory, calls a
kernel, and copies the results into shared memory. It draws no inputs, compares nothing and writes no file.
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, cast

import torch
from torch import Tensor

from longca import plugins
from longca.kernels.base import Kernel, Plan
from longca.manifests import Direction, Problem
from longca.parallel.pushes import window_bytes
from longca.plain_text import plain_text
from longca_bench.measuring import memory
from longca_bench.measuring.arena import Block, Where, tensor_at
from longca_bench.measuring.child_process import serve
from longca_bench.measuring.commands import MOST_BYTES, Answer, Call, Mode, PlanFacts, Returned, WorkerSetup
from longca_bench.measuring.global_state import GlobalState
from longca_bench.measuring.messages import Place
from longca_bench.measuring.results import describe_all, methods_of, named_results
from longca_bench.measuring.timing import calls_in_a_row, timed_call, wall_call
from longca_bench.measuring.world import World
from longca_bench.verification.sinks import with_sinks

__all__ = ["WorkerProcess"]

_ERROR = 2000
_WORD = 400


def _serve(connection: Connection) -> None:
    setup: WorkerSetup = connection.recv()
    if setup.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory, setup.memory))
    os.environ["LONGCA_PLUGINS"] = ",".join(setup.distributions)  # no other plugin is imported here
    worker = WorkerProcess(connection, setup)
    while True:
        worker.number, command, arguments = connection.recv()
        worker.say(worker.answer(command, arguments))


class WorkerProcess:
    """The state of a worker: its kernels, its plans and the shared memory that it has mapped."""

    def __init__(self, connection: Connection, setup: WorkerSetup) -> None:
        self.number, self._pid = 0, os.getpid()
        self._connection = connection
        self._world = self._abreast = World(torch.device(setup.device))
        if self._world.device.index is not None:
            torch.cuda.set_device(self._world.device)
        self._blocks: dict[int, Block] = {}
        self._kernels: dict[str, Kernel] = {}
        self._plans: dict[int, Plan] = {}
        self._state: GlobalState | None = None
        self._do: dict[str, Callable[..., Answer]] = {
            "share": self._share,
            "close": self._close,
            "load": self._load,
            "plan": self._plan,
            "call": self._call,
            "join": self._join,
        }

    def answer(self, command: str, arguments: tuple[Any, ...]) -> Answer:
        """Does a command. An exception of a plugin is the answer."""
        self._state = None
        try:
            return self._do[command](*arguments)
        except BaseException as error:  # a kernel may raise anything, SystemExit and KeyboardInterrupt too
            text = f"{plain_text(type(error).__name__, 100)}: {plain_text(error, _ERROR)}"
            exhausted = memory.is_exhausted(error, text)
        # The error is gone now, and with it the tensors of the frames that it came through.
        gc.collect()
        changed: list[str] = [] if self._state is None else self._state.changed()
        return Answer(error=text, exhausted=exhausted, lost=memory.is_device_lost(), changed=changed)

    def _share(self, number: int, nbytes: int, handle: bytes, fd: int) -> Answer:
        """Maps a block, by its IPC handle or by the descriptor of its file in the process that started this one."""
        block = Block(number, nbytes, self._world.device)
        if handle:
            block.memory = memory.open_exported(handle)
        else:
            here = os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_RDWR)
            block.memory = mmap.mmap(here, nbytes)
            os.close(here)
        self._blocks[number] = block
        return Answer()

    def _close(self, numbers: tuple[int, ...]) -> Answer:
        for number in numbers:
            block = self._blocks.pop(number)
            if block.handle or block.device.type == "cuda":
                memory.close(block.memory)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return Answer()

    @property
    def world(self) -> World:
        """The workers of all ranks, or this device alone."""
        return self._abreast

    def kernel(self, name: str) -> Kernel:
        """A loaded kernel."""
        return self._kernels[name]

    def watch(self) -> GlobalState:
        """The global state before a command. If the command raises, its answer says what has changed."""
        self._state = GlobalState()
        return self._state

    def _load(self, name: str) -> Answer:
        before = self.watch()
        if name not in self._kernels:
            self._kernels[name] = plugins.registry().load(name)
        return Answer(methods=methods_of(self._kernels[name]), changed=before.changed())

    def _join(self, place: Place, number: int, marks: int) -> Answer:
        """Joins a group of the workers of all ranks. See `RankWorker`."""
        # Only ranks import torch.distributed.
        from longca_bench.measuring.rank_worker import RankWorker

        joined = RankWorker(self, self._world.device, place, number, marks)
        self._abreast = joined.world
        self._do |= joined.commands
        return Answer()

    def _plan(self, number: int, name: str, problem: Problem, forget: tuple[int, ...]) -> Answer:
        """Makes a plan and keeps it by its number, and forgets plans that are not needed any more."""
        for old in forget:
            self._plans.pop(old, None)
        before, kernel = self.watch(), self._kernels[name]
        self._world.synchronize()
        start = time.perf_counter()
        plan = kernel.plan(problem)
        self._world.synchronize()
        seconds = time.perf_counter() - start
        self._plans[number] = plan
        return Answer(seconds=seconds, plan=_facts(plan, problem), changed=before.changed())

    def _call(self, asked: Call) -> Answer:
        tensors, buffers, landing = map(self.tensors, (asked.tensors, asked.buffers, asked.landing))
        plan, given = self._plans[asked.plan], tuple(tensors.values())
        kernel = with_sinks(self._kernels[asked.kernel], plan)
        method: Callable[..., Any] = kernel.forward if asked.direction is Direction.FORWARD else kernel.backward
        world = self._abreast if asked.abreast else self._world
        return self.made(asked, lambda: method(*given, plan, **buffers), world, tensors, buffers, landing)

    def made(
        self,
        asked: Call,
        call: Callable[[], Any],
        world: World,
        tensors: dict[str, Tensor],
        buffers: dict[str, Tensor],
        landing: dict[str, Tensor],
    ) -> Answer:
        """Makes a call as it is asked, and describes its results."""
        if asked.mode is Mode.TIMED and world.device.type == "cpu":
            for tensor in tensors.values():
                tensor.sum()  # another process wrote it on another core, and a caller's tensors are in its own caches
        state = self.watch()
        measured: dict[str, Any] = {}
        if asked.mode is Mode.TIMED:
            measured["seconds"], results = timed_call(call, world)
            self.tell_end()
        elif asked.mode is Mode.WALL:
            measured["seconds"], results = wall_call(call, world)
            self.tell_end()
        elif asked.mode is Mode.PEAK:
            measured["peak"], results = self.peak(call)
        elif asked.mode is Mode.LOAD:
            results = calls_in_a_row(call, asked.times, world)
        else:
            results = call()
        if asked.mode is Mode.PLAIN:
            self._world.synchronize()
        self._end_a_copy()
        is_strategy = not asked.kernel
        named, fault = named_results(asked.direction, results, "strategy" if is_strategy else "kernel")
        returned = describe_all(named, tensors, buffers, parts=is_strategy)
        landed = {name: there for name, there in landing.items() if _lands(returned, name, there)}
        measured["late"] = self._land(named, landed)
        return Answer(
            returned=[returned[name] for name in named],
            fault=plain_text(fault, _WORD),
            changed=state.changed(),
            **measured,
        )

    def tell_end(self) -> None:
        """Says that a timed call has ended."""
        self.say(Answer(said="ended"))

    def say(self, answer: Answer) -> None:
        """Sends an answer."""
        self._end_a_copy()
        answer = answer.model_copy(update={"number": self.number})
        self._connection.send_bytes(answer.model_dump_json().encode())

    def _end_a_copy(self) -> None:
        """Ends a copy of this process that a kernel has made by a fork."""
        if os.getpid() != self._pid:
            os._exit(0)

    def peak(self, call: Callable[[], Any]) -> tuple[int | None, Any]:
        """Bytes of the peak above the memory before a call, or None on CPUs, and the call's results.

        Windows that peers push into count whole. They are not the allocator's, and calls before may have made them.
        """
        if self._world.device.type == "cpu":
            return None, call()
        gc.collect()  # compilers leave frames in cycles, and with them windows and tensors of calls before
        self._world.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        self._world.synchronize()
        return torch.cuda.max_memory_allocated() - before + window_bytes(), results

    def _land(self, named: dict[str, Any], landing: dict[str, Tensor]) -> float:
        """Copies results to shared memory. Returns the seconds for which a CUDA device went on with other work."""
        for name, there in landing.items():
            there.copy_(named[name])
        if self._world.device.type == "cpu":
            return 0.0
        torch.cuda.current_stream().synchronize()
        start = time.perf_counter()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def tensors(self, places: dict[str, Where]) -> dict[str, Tensor]:
        """The tensors at some places in shared memory, by their names."""
        return {name: tensor_at(self._blocks[where.block], where) for name, where in places.items()}


def _lands(returned: dict[str, Returned], name: str, there: Tensor) -> bool:
    """Whether a result is to be copied: a plain tensor of the right shape that is in no buffer."""
    found = returned.get(name)
    return found is not None and not found.fault and not found.is_in and found.shape == list(there.shape)


def _facts(plan: Any, problem: Problem) -> PlanFacts:
    """The facts that a plan says of itself. A fact that is missing or impossible is its fault."""
    if not isinstance(plan, Plan):
        return PlanFacts(fault=f"plan returned a {plain_text(type(plan).__name__, 100)}")
    fault, nbytes, backend = "", plan.metadata_bytes, cast(object, plan.backend)
    if plan.problem is not problem and plan.problem != problem:
        fault = "the plan is for another problem than the one that was asked"
    elif not isinstance(backend, str):
        fault = f"the plan's backend is a {plain_text(type(backend).__name__, 100)} instead of a text"
    elif type(nbytes) is not int or not 0 <= nbytes <= MOST_BYTES:
        fault = f"the plan's metadata_bytes is {plain_text(repr(nbytes), 40)}"
    return PlanFacts(
        form=plain_text(plan.form, _WORD),
        form_text=plain_text(plan.form_text, _WORD),
        backend=plain_text(plan.backend, _WORD),
        metadata_bytes=0 if fault else nbytes,
        fault=fault,
    )


if __name__ == "__main__":
    serve(_serve)
