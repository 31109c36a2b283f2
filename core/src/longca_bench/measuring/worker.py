"""Workers: processes that run the kernels of some distributions for this process, which draws inputs and compares.

A worker loads the plugins of one distribution, or of several for a pair or for a strategy with its kernel. It starts
when it is first needed, and again after it was lost. While one worker computes, the others are stopped.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from longca_bench.measuring.arena import Arena, Where
from longca_bench.measuring.child_process import ChildProcess
from longca_bench.measuring.commands import LONGEST, Answer, WorkerSetup
from longca_bench.measuring.options import OWN_VARIABLES
from longca_bench.measuring.status import CaseEndError, Status, failure

__all__ = ["Reply", "Worker", "Workers"]

_MODULE = "longca_bench.measuring.worker_process"
#: Workers that are kept alive. On a GPU each has a context of about half a GB.
_MOST_ALIVE = 16
#: Bytes of shared memory without a tensor that are kept for later cases.
_MOST_KEPT = 2**28
_LOOK = 0.5  # seconds between two looks while a worker computes


@dataclass(frozen=True)
class Reply:
    """The answer of a worker, and the seconds until it said so, or that the timed call had ended, by this clock."""

    answer: Answer
    seconds: float

    @property
    def sample(self) -> float:
        """Seconds of a timed call by the worker's clock."""
        return max(self.answer.seconds or 0.0, 1e-9)


class Workers:
    """The workers of this process on one device, by their distributions, and the memory that it shares with them.

    `memory` is the bytes of address space that each may take. `gpu` is the one GPU that they see, as
    CUDA_VISIBLE_DEVICES names it. `deadline` is when the case must have ended, by the monotonic clock.
    """

    def __init__(self, device: torch.device, memory: int | None = None, gpu: str | None = None) -> None:
        self.arena = Arena(device)
        self.deadline: float | None = None
        self._device, self._memory, self._gpu = device, memory, gpu
        self._folder = tempfile.mkdtemp(prefix="longca-")
        self._workers: dict[frozenset[str], Worker] = {}

    def of(self, distributions: Iterable[str]) -> Worker:
        """The worker that loads the plugins of some distributions, and of no other."""
        key = frozenset(distributions)
        worker = self._workers.pop(key, None) or Worker(self, key)
        self._workers[key] = worker  # the last one is the latest
        for other in list(self._workers.values())[:-_MOST_ALIVE]:
            other.end()
        return worker

    @property
    def keep_memory(self) -> bool:
        """Whether workers run that keep memory of a CUDA device, which another one may lack."""
        return self._device.type == "cuda" and any(worker.is_running for worker in self._workers.values())

    def start(self, distributions: frozenset[str]) -> ChildProcess:
        """Starts the process of a worker."""
        os.makedirs(self._folder, exist_ok=True)
        own = {} if self._gpu is None else {"CUDA_VISIBLE_DEVICES": self._gpu}
        # Threads that spin on cores that other processes use take up to a hundred times as long. On a CPU they sleep.
        hidden = OWN_VARIABLES if self._device.type == "cuda" and OWN_VARIABLES[-1] in os.environ else ()
        process = ChildProcess(_MODULE, tempfile.mkdtemp(dir=self._folder), own, hidden)
        device = self._device.type if self._gpu is not None else str(self._device)
        process.connection.send(WorkerSetup(device, distributions, self._memory))
        return process

    def stop_others(self, worker: Worker) -> None:
        """Stops all workers but one."""
        for other in self._workers.values():
            if other is not worker:
                other.stop()

    def trim(self) -> None:
        """Gives shared memory back that no tensor is in, if it is much. New memory costs time in every process."""
        if self.arena.unused_bytes <= _MOST_KEPT:
            return
        numbers = self.arena.unused
        for worker in self._workers.values():
            worker.unmap(numbers)
        self.arena.trim()

    def end(self) -> None:
        """Ends all workers. They start again at need."""
        for worker in self._workers.values():
            worker.end()

    def close(self) -> None:
        """Ends all workers, and removes their folder."""
        self.end()
        shutil.rmtree(self._folder, ignore_errors=True)


class Worker:
    """One worker process, which is started at need.

    `age` grows when a process is ended, so a plan knows whether its process is there. `is_changed` says that a kernel
    changed the process's global state, and `is_joined` that it has joined the workers of other ranks. `look` is called
    now and then while this process waits for an answer, and before an error is raised.
    """

    def __init__(self, workers: Workers, distributions: frozenset[str]) -> None:
        self._workers, self._distributions = workers, distributions
        self._process: ChildProcess | None = None
        self._mapped: set[int] = set()
        self._loaded: dict[str, dict[str, list[str]]] = {}
        self._is_stopped, self._sent = False, 0
        self.age, self.is_changed, self.is_joined = 0, False, False
        self.look: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None

    def begin(self) -> None:
        """Begins to start the process, unless it runs. It is ready some time later."""
        if self._process is None:
            self._process = self._workers.start(self._distributions)

    def start(self) -> None:
        """Starts the process, unless it runs, and waits until it is ready."""
        self._ready()
        self._send("close", ())
        self._receive()

    def load(self, kernel: str) -> dict[str, list[str]]:
        """Makes it import a kernel, unless it has, and returns the names of the arguments of each method."""
        self._ready()
        if kernel not in self._loaded:
            self._loaded[kernel] = self.imports("load", kernel).methods
        return self._loaded[kernel]

    def imports(self, command: str, *arguments: object) -> Answer:
        """Makes it import something. An import that fails or changes global state is a CaseEndError."""
        answer = self.call(command, *arguments).answer
        if answer.changed:
            raise CaseEndError(Status.WRONG, f"the import changes global state: {', '.join(answer.changed)}")
        return answer

    def place(self, tensor: Tensor) -> Where:
        """The place of a shared tensor, in a block that the worker has mapped."""
        where, block = self._workers.arena.where(tensor), self._workers.arena.block_of(tensor)
        assert block is not None, "only shared tensors have a place"
        if where.block not in self._mapped:
            self._ready()
            self._send("share", block.number, block.nbytes, block.handle, block.fd)
            if error := self._receive().error:
                raise CaseEndError(Status.ERROR, error)
            self._mapped.add(where.block)
        return where

    def call(self, command: str, *arguments: object) -> Reply:
        """Gives it a command, and waits for the answer. All that is no good answer in time is a CaseEndError."""
        if self._workers.arena.device.type == "cuda":
            torch.cuda.synchronize()  # what this process has written is there
        self._ready()
        start = time.perf_counter()
        self._send(command, *arguments)
        answer, ended = self._receive(), 0.0
        while answer.said == "ended":
            ended = ended or time.perf_counter() - start
            answer = self._receive()
        seconds = ended or time.perf_counter() - start
        self.is_changed |= bool(answer.changed)
        self.look()
        if answer.error:
            if answer.lost or (answer.exhausted and not self.is_joined):  # other ranks may wait for a rank
                self.end()  # what its allocator keeps is memory for others
            raise CaseEndError(failure(exhausted=answer.exhausted), answer.error)
        return Reply(answer, seconds)

    def unmap(self, numbers: Iterable[int]) -> None:
        """Makes it close blocks of shared memory that it has mapped. A worker that cannot is ended."""
        closed = tuple(number for number in numbers if number in self._mapped)
        if closed and self._process is not None:
            try:
                self.call("close", closed)
            except CaseEndError:
                self.end()
        self._mapped.difference_update(closed)

    def stop(self) -> None:
        """Stops it until the next command."""
        if self._process is not None and not self._is_stopped:
            self._process.signal(signal.SIGSTOP)
            self._is_stopped = True

    def end(self) -> None:
        """Ends it and everything that it started."""
        if self._process is not None:
            self._process.end()
        self._forget()

    def _forget(self) -> None:
        self.age += self._process is not None
        self._process, self._is_stopped, self.is_changed, self.is_joined = None, False, False, False
        self._mapped.clear()
        self._loaded.clear()

    def _ready(self) -> None:
        self._workers.stop_others(self)
        self.begin()
        if self._is_stopped and self._process is not None:
            self._process.signal(signal.SIGCONT)
            self._is_stopped = False

    def _send(self, command: str, *arguments: object) -> None:
        assert self._process is not None, "a worker is started before it is given anything"
        self._sent += 1
        try:
            self._process.connection.send((self._sent, command, arguments))
        except OSError:
            raise self._lost("") from None

    def _receive(self) -> Answer:
        assert self._process is not None, "a worker is started before it answers"
        self._wait()
        try:
            answer = Answer.model_validate_json(self._process.connection.recv_bytes(LONGEST))
        except (EOFError, OSError):
            raise self._lost("") from None
        except ValueError:  # a ValidationError is one
            raise self._lost("sent something other than an answer, and ") from None
        if answer.number != self._sent:
            raise self._lost("answered another command than the last, and ")
        return answer

    def _wait(self) -> None:
        """Waits for the next words of the worker. Past the deadline it is ended."""
        assert self._process is not None, "a worker is started before anything is awaited of it"
        deadline, connection = self._workers.deadline, self._process.connection
        while True:
            left = math.inf if deadline is None else deadline - time.monotonic()
            if left > 0 and connection.poll(min(_LOOK, left)):
                return
            if left <= 0:
                self.end()
                raise CaseEndError(Status.TIMEOUT, "it gave no answer before its deadline, and was ended")
            self.look()

    def _lost(self, before: str) -> CaseEndError:
        """The error of a worker that is lost. Everything that it started is ended."""
        process = self._process
        assert process is not None, "a worker is lost after it was started"
        self.look()
        how, words = process.how_it_ended(), process.last_words
        self._forget()
        said = f". Its last words: {words}" if words else ""
        return CaseEndError(Status.CRASHED, f"the worker {before}{how}{said}")
