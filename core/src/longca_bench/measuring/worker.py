"""The worker: a process that runs the kernels of one distribution, as a judge commands.

It gets tensors in shared memory, calls a kernel, and puts the results into shared memory. It draws no inputs, compares
nothing and writes no file, and nothing that it says is believed. A case can end its worker and nothing else.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from longca import plugins
from longca.kernels.base import Kernel, Plan
from longca.manifests import Direction
from longca.parallel.pushes import window_bytes
from longca.plain_text import plain_text
from longca_bench.measuring import cuda_memory
from longca_bench.measuring.arena import Block, Where, tensor_at
from longca_bench.measuring.commands import (
    MOST_BYTES,
    Answer,
    Close,
    Load,
    MakePlan,
    Mode,
    PlanFacts,
    Returned,
    Run,
    Share,
    WorkerSetup,
)
from longca_bench.measuring.exhaustion import is_exhausted
from longca_bench.measuring.global_state import GlobalState
from longca_bench.measuring.results import describe_all, methods_of, named_results
from longca_bench.measuring.strategy_commands import CallStrategy, Join
from longca_bench.measuring.timing import calls_in_a_row, timed_call, wall_call
from longca_bench.measuring.world import World

__all__ = ["serve"]

#: A number that no kernel seeds with. One that seeds with the same changes no state that shows.
_SEED = 1_099_466
_ERROR = 2000
_WORD = 400


def serve(connection: Connection, setup: WorkerSetup) -> None:
    """Does what a judge commands until the connection is closed.

    Args:
        connection: The worker's end of the connection.
        setup: The judge's words at the start.
    """
    if setup.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory, setup.memory))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(_SEED)  # a worker begins in a known state
    os.environ["LONGCA_PLUGINS"] = ",".join(setup.distributions)  # no other plugin is imported here
    worker = Worker(connection, setup)
    while True:
        try:
            number, command = connection.recv()
        except EOFError:
            return
        worker.number = number
        worker.say(worker.answer(command))


class Worker:
    """The state of a worker: its kernels, its plans and the shared memory that it has mapped.

    Args:
        connection: The worker's end of the connection.
        setup: The judge's words at the start.

    Attributes:
        number: Number of the command that is being done.
    """

    def __init__(self, connection: Connection, setup: WorkerSetup) -> None:
        self.number, self._pid = 0, os.getpid()
        self._connection = connection
        self._world = self._abreast = World(torch.device(setup.device))
        if self._world.device.index is not None:
            torch.cuda.set_device(self._world.device)
        if self._world.device.type == "cuda":
            torch.empty(1, device=self._world.device)  # a context is no state that a kernel changed
        self._blocks: dict[int, Block] = {}
        self._kernels: dict[str, Kernel] = {}
        self._plans: dict[int, Plan] = {}
        self._state: GlobalState | None = None  # at the last look, if the last command was a call
        self._called: set[tuple[type, int, Direction]] = set()  # plans, and directions in which they were called
        self._do: dict[type, Callable[[Any], Answer]] = {
            Share: self._share,
            Close: self._close,
            Load: self._load,
            MakePlan: self._plan,
            Run: self._run,
            Join: self._join,
        }

    def answer(self, command: object) -> Answer:
        """Does a command. Whatever a plugin raises is the answer."""
        is_call = isinstance(command, Run | CallStrategy)
        try:
            answer = self._do[type(command)](command)
            self._state = self._state if is_call else None
            return answer
        except BaseException as error:  # a kernel may raise anything, SystemExit and KeyboardInterrupt too
            text = f"{plain_text(type(error).__name__, 100)}: {plain_text(error, _ERROR)}"
            exhausted = is_exhausted(error, text)
        # The error is gone now, and with it the tensors of the frames that it came through.
        gc.collect()
        return Answer(error=text, exhausted=exhausted, lost=self._poisoned(), changed=self._changed())

    def _changed(self) -> list[str]:
        """Names of the global state that a command changed before it raised."""
        state, self._state = self._state, None
        try:
            return [] if state is None else state.changed()
        except Exception:  # the working directory may be gone
            return ["a state that cannot be read"]

    def _poisoned(self) -> bool:
        """Whether the CUDA context can do nothing more, as after an illegal memory access."""
        if not torch.cuda.is_initialized():
            return False
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:
            return True
        return False

    def _share(self, share: Share) -> Answer:
        block = Block(share.number, share.nbytes, self._world.device)
        if share.handle:
            block.memory = cuda_memory.open_exported(share.handle)
        else:
            block.fd = recv_handle(self._connection)
            block.memory = mmap.mmap(block.fd, share.nbytes)
            block.memory.madvise(mmap.MADV_DONTFORK)  # a copy of the worker would write to a later call's results
            os.close(block.fd)
        self._blocks[share.number] = block
        return Answer()

    def _close(self, close: Close) -> Answer:
        for number in close.numbers:
            block = self._blocks.pop(number)
            if block.handle or block.device.type == "cuda":
                cuda_memory.close(block.memory)
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

    def _load(self, load: Load) -> Answer:
        before = self.watch()
        if load.kernel not in self._kernels:
            self._kernels[load.kernel] = plugins.registry().load(load.kernel)
        return Answer(methods=methods_of(self._kernels[load.kernel]), changed=before.changed_by_import())

    def _join(self, join: Join) -> Answer:
        # Only ranks import torch.distributed.
        from longca_bench.measuring.rank_worker import RankWorker

        joined = RankWorker(self, self._world.device, join, recv_handle(self._connection))
        self._abreast = joined.world
        self._do |= joined.commands
        return Answer()

    def _plan(self, asked: MakePlan) -> Answer:
        for number in asked.forget:
            self._plans.pop(number, None)
        before, kernel = self.watch(), self._kernels[asked.kernel]
        self._world.synchronize()
        start = time.perf_counter()
        plan = kernel.plan(asked.problem)
        self._world.synchronize()
        seconds = time.perf_counter() - start
        self._plans[asked.number] = plan
        return Answer(seconds=seconds, plan=_facts(plan, asked), changed=before.changed(sets_up=True))

    def _run(self, run: Run) -> Answer:
        tensors, buffers, landing = map(self.tensors, (run.tensors, run.buffers, run.landing))
        call = self._call(run, tensors, buffers)
        if run.earlier:
            call = self._in_a_row(run, call)
        return self.made(run, call, self._abreast if run.abreast else self._world, tensors, buffers, landing)

    def made(
        self,
        run: Run | CallStrategy,
        call: Callable[[], Any],
        world: World,
        tensors: dict[str, Tensor],
        buffers: dict[str, Tensor],
        landing: dict[str, Tensor],
    ) -> Answer:
        """Makes a call as it is asked, and describes its results.

        Args:
            run: The command.
            call: The call.
            world: The ranks that begin together.
            tensors: The arguments.
            buffers: The buffers that the call gets.
            landing: Where results go that are in no buffer.
        """
        if run.mode is Mode.TIMED and world.device.type == "cpu":
            for tensor in tensors.values():
                tensor.sum()  # the judge wrote it on another core, and a caller's tensors are in its own caches
        self._state = self._state or GlobalState()
        measured: dict[str, Any] = {}
        if run.mode is Mode.TIMED:
            measured["seconds"], results = timed_call(call, world)
            self.tell_end()
        elif run.mode is Mode.WALL:
            measured["seconds"], results = wall_call(call, world)
            self.tell_end()
        elif run.mode is Mode.PEAK:
            measured["peak"], results = self.peak(call)
        elif run.mode is Mode.LOAD:
            results = calls_in_a_row(call, run.times, world)
        elif run.mode is Mode.BURST:
            results = call()
            self._world.synchronize()
            self.tell_end()
        else:
            results = call()
        if run.mode is Mode.PLAIN:
            self._world.synchronize()
        self._end_a_copy()
        is_strategy = isinstance(run, CallStrategy)
        named, fault = named_results(run.direction, results, "strategy" if is_strategy else "kernel")
        returned = describe_all(named, tensors, buffers, parts=is_strategy)
        landed = {name: there for name, there in landing.items() if _lands(returned, name, there)}
        measured["late"] = self._land(named, landed)
        is_first = self._is_first(run)
        # Compilers start threads in a first call, and may do so in some later ones on a CUDA device.
        threads = run.mode is Mode.TIMED or not (is_first or world.device.type == "cuda")
        return Answer(
            returned=[returned[name] for name in named],
            fault=plain_text(fault, _WORD),
            changed=self._state.changed(threads=threads, sets_up=is_first),
            **measured,
        )

    def _is_first(self, run: Run | CallStrategy) -> bool:
        """Whether a plan is called in a direction for the first time, when libraries are imported and compile."""
        called = (type(run), run.plan, run.direction)
        is_first = called not in self._called
        self._called.add(called)
        return is_first and run.mode is not Mode.TIMED

    def tell_end(self) -> None:
        """Tells the judge that a timed call has ended."""
        self.say(Answer(said="ended"))

    def say(self, answer: Answer) -> None:
        """Sends the judge an answer."""
        self._end_a_copy()
        answer = answer.model_copy(update={"number": self.number})
        self._connection.send_bytes(answer.model_dump_json().encode())

    def _end_a_copy(self) -> None:
        """Ends a copy of this process that a kernel has made. A copy says nothing, and writes no results."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _call(self, run: Run, tensors: dict[str, Tensor], buffers: dict[str, Tensor]) -> Callable[[], Any]:
        kernel, plan = self._kernels[run.kernel], self._plans[run.plan]
        given = tuple(tensors.values())
        method: Callable[..., Any] = kernel.forward if run.direction is Direction.FORWARD else kernel.backward
        return lambda: method(*given, plan, **buffers)

    def _in_a_row(self, run: Run, last: Callable[[], Any]) -> Callable[[], Any]:
        """Calls in a row. The results of each one are copied to where the judge reads them before the next one."""
        steps = [
            (self._call(run, self.tensors(tensors), {}), tuple(self.tensors(landing).values()))
            for tensors, landing in run.earlier
        ]

        def calls() -> Any:
            for call, landing in steps:
                for there, result in zip(landing, call(), strict=True):
                    there.copy_(result)
            return last()

        return calls

    def peak(self, call: Callable[[], Any]) -> tuple[int | None, Any]:
        """Bytes of the peak above the memory before a call, or None on CPUs, and the call's results.

        Windows that peers push into count whole. They are not the allocator's, and calls before may have made them.
        """
        if self._world.device.type == "cpu":
            return None, call()
        self._world.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        self._world.synchronize()
        return torch.cuda.max_memory_allocated() - before + window_bytes(), results

    def _land(self, named: dict[str, Any], landing: dict[str, Tensor]) -> float:
        """Copies results to where the judge reads them, and returns the seconds for which the device went on.

        The copies wait for nothing: they take what is there when the call has ended.
        """
        if self._world.device.type == "cpu":
            for name, there in landing.items():
                there.copy_(named[name])
            return 0.0
        with torch.cuda.stream(torch.cuda.Stream()) as side:
            for name, there in landing.items():
                there.copy_(named[name])
            torch.cuda.current_stream().synchronize()
        del side
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


def _facts(plan: Any, asked: MakePlan) -> PlanFacts:
    """The facts that a plan says of itself. A fact that is missing or impossible is its fault."""
    if not isinstance(plan, Plan):
        kind = plain_text(type(plan).__name__, 100)
        return PlanFacts(form="", form_text="", backend="", metadata_bytes=0, fault=f"plan returned a {kind}")
    fault, nbytes, backend = "", plan.metadata_bytes, cast(object, plan.backend)
    if plan.problem is not asked.problem and plan.problem != asked.problem:
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
