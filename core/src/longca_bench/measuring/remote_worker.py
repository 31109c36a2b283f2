"""A remote worker: a judge's end of one worker process."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longca.processes import computed
from longca.processor_time import waited
from longca_bench.measuring.arena import Where
from longca_bench.measuring.case_end import CaseEndError, failure
from longca_bench.measuring.commands import LONGEST, Answer, Close, Load, Share, WorkerSetup
from longca_bench.measuring.frames import is_ready, receive, send, send_descriptor
from longca_bench.measuring.heard import Heard, Moment
from longca_bench.measuring.keeping import Keeper, WorkerProcess
from longca_bench.measuring.status import Status

if TYPE_CHECKING:
    from longca_bench.measuring.workers import Workers

__all__ = ["RemoteWorker"]

_PINGS = 9
_LOOK = 0.5  # seconds between two looks while a worker computes


class RemoteWorker:
    """One worker process, which is started at need.

    Args:
        workers: All workers of the judge.
        keeper: The keeper that starts it.
        setup: Its first data.

    Attributes:
        age: Number of the process. It grows when a process is ended, so a plan knows whether its process is there.
        is_changed: Whether a kernel changed the process's global state.
        is_joined: Whether the process has joined the workers of other ranks.
        latency: Seconds from a command that asks nothing until its answer, before a plugin was loaded.
        look: Is called now and then while the judge waits for an answer, and before an error is raised.
        echoes: Whether what a new process prints goes to this process's standard error too.
    """

    def __init__(self, workers: Workers, keeper: Keeper, setup: WorkerSetup) -> None:
        self._workers, self._keeper, self._setup = workers, keeper, setup
        self._process: WorkerProcess | None = None
        self._mapped: set[int] = set()
        self._loaded: dict[str, dict[str, list[str]]] = {}
        self._rests, self._paused, self._sent = False, False, 0
        self.age, self.latency, self.is_changed, self.is_joined = 0, 0.0, False, False
        self.look: Callable[[], None] = lambda: None
        self.echoes = False

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None

    def start(self) -> None:
        """Starts the process, unless it runs."""
        if self._process is None:
            self._ready()

    def load(self, kernel: str) -> dict[str, list[str]]:
        """Makes it import a kernel and make its instance, unless it has.

        Returns:
            The names of the arguments of each of the kernel's methods. `**` stands for any others.

        Raises:
            CaseEndError: The kernel cannot be loaded, or its import changes global state.
        """
        self._ready()
        if kernel not in self._loaded:
            self._loaded[kernel] = self.imports(Load(kernel)).methods
        return self._loaded[kernel]

    def imports(self, command: object) -> Answer:
        """Makes it import something.

        Args:
            command: The command.

        Raises:
            CaseEndError: The import fails, or changes global state.
        """
        answer = self.ask(command).answer
        if answer.changed:
            raise CaseEndError(Status.WRONG, f"the import changes global state: {', '.join(answer.changed)}")
        return answer

    def place(self, tensor: Tensor) -> Where:
        """The place of a shared tensor, in a block that the worker has mapped."""
        where, block = self._workers.arena.where(tensor), self._workers.arena.block_of(tensor)
        assert block is not None, "only shared tensors have a place"
        if where.block not in self._mapped:
            self._ready()
            self._send(Share(block.number, block.nbytes, block.handle))
            if not block.handle:
                self._send_descriptor(block.fd)
            if error := self._hear().error:
                self.end()  # the descriptor may still be in the connection
                raise CaseEndError(Status.ERROR, error)
            self._mapped.add(where.block)
        return where

    def ask(self, command: object, fd: int | None = None) -> Heard:
        """Gives it a command, and waits for the answer.

        Args:
            command: The command.
            fd: A descriptor that follows the command.

        Raises:
            CaseEndError: The plugin raised, the worker died, its answer is no answer, or the deadline passed.
        """
        if self._workers.arena.device.type == "cuda":
            torch.cuda.synchronize()  # what this process has written is there
        before = self._computed_by_others()
        self._ready()  # it goes on only now, so that it cannot begin with the inputs before its command
        begin = self._moment()
        self._send(command)
        if fd is not None:
            self._send_descriptor(fd)
        answer, ended = self._hear(), Moment()
        while answer.said == "ended":  # the first word counts; a kernel may make its process say it again
            ended = ended if ended.seconds else self._moment(begin)
            answer = self._hear()
        done = self._moment(begin)
        if not self.is_joined and self._process is not None:  # other ranks may wait for a rank
            self._process.pause()  # nothing computes on while results are read and the next inputs are written
            self._paused = True
        others = max(0.0, self._computed_by_others() - before)
        self.is_changed |= bool(answer.changed)
        self.look()
        if answer.error:
            self._raise(answer)
        return Heard(answer, ended.with_computed(others), done.with_computed(others))

    def unmap(self, numbers: Iterable[int]) -> None:
        """Makes it close blocks of shared memory that it has mapped. A worker that cannot is ended."""
        closed = tuple(number for number in numbers if number in self._mapped)
        if closed and self._process is not None:
            try:
                self.ask(Close(closed))
            except CaseEndError:
                self.end()
        self._mapped.difference_update(closed)

    def rest(self) -> None:
        """Stops it until the next command."""
        if self._process is not None and not self._rests:
            self._process.rest()
            self._rests = True

    def end(self, *, is_lost: bool = False) -> str:
        """Ends it and everything that it started, and says how it ended.

        Args:
            is_lost: Whether its connection is closed, so that it has ended or is about to.
        """
        if self._process is None:
            return "had not been started"
        how = self._process.end(is_lost=is_lost)
        self._process, self._rests, self._paused = None, False, False
        self.is_changed = self.is_joined = False
        self.age += 1
        self._mapped.clear()
        self._loaded.clear()
        return how

    def _ready(self) -> None:
        if self._process is not None and self._process.is_orphan:
            self.end(is_lost=True)
        self._workers.alone(self)  # before it goes on, so that nothing of its own is taken for another worker's
        if self._process is None:
            self._process = self._keeper.start(self._setup)
            self._process.echoes = self.echoes
            self.latency = self._pinged()
        if self._rests:
            self._process.wake()
            self._rests = False
        if self._paused:
            self._process.resume()
            self._paused = False

    def _moment(self, since: Moment = Moment()) -> Moment:
        pid = self._process.pid if self._process is not None else os.getpid()
        missed = waited(os.getpid()) + waited(pid) * (pid != os.getpid())
        return Moment(time.perf_counter() - since.seconds, missed - since.waited, computed(pid) - since.computed)

    def _computed_by_others(self) -> float:
        """Seconds that the processes which the worker has started computed. This is read while no call is timed."""
        return self._process.computed_by_others() if self._process is not None else 0.0

    def _pinged(self) -> float:
        """Seconds of the median round trip. The process runs no code of a plugin yet."""
        seconds = []
        for _ in range(_PINGS):
            start = time.perf_counter()
            self._send(Close(()))
            self._hear()
            seconds.append(time.perf_counter() - start)
        return median(seconds)

    def _send(self, command: object) -> None:
        assert self._process is not None, "a worker is started before it is given anything"
        connection = self._process.connection
        self._sent += 1
        try:
            if is_ready(connection, select.POLLIN, 0.0):
                said = os.read(connection.fileno(), 1)
                raise self._lost("said something that nobody had asked, and " if said else "")
            send(connection, (self._sent, command), self._wait)
        except OSError:
            raise self._lost("") from None

    def _send_descriptor(self, fd: int) -> None:
        assert self._process is not None, "a worker is started before it is given anything"
        try:
            send_descriptor(self._process.connection, fd, self._wait)
        except OSError:
            raise self._lost("") from None

    def _hear(self) -> Answer:
        assert self._process is not None, "a worker is started before it is heard"
        try:
            answer = Answer.model_validate_json(receive(self._process.connection, LONGEST, self._wait))
        except (EOFError, OSError):
            raise self._lost("") from None
        except ValueError:  # a ValidationError is one
            raise self._lost("sent something other than an answer, and ") from None
        if answer.number != self._sent:
            raise self._lost("answered another command than the last, and ")
        return answer

    def _wait(self, way: int) -> None:
        """Waits until the connection is ready to read or to write. Past the deadline the worker is ended.

        Args:
            way: `select.POLLIN` or `select.POLLOUT`.
        """
        assert self._process is not None, "a worker is started before anything is awaited of it"
        deadline, connection = self._workers.deadline, self._process.connection
        while True:
            left = math.inf if deadline is None else deadline - time.monotonic()
            if is_ready(connection, way, max(0.0, min(_LOOK, left))) and left > 0:
                return
            if left <= 0:
                self.end()
                raise CaseEndError(Status.TIMEOUT, "it gave no answer before its deadline, and was ended")
            self.look()

    def _lost(self, before: str) -> CaseEndError:
        """The error of a worker that is lost. Everything that it started is ended."""
        process = self._process
        self.look()
        how = self.end(is_lost=True)
        words = process.last_words if process is not None else ""
        said = f". Its last words: {words}" if words else ""
        return CaseEndError(Status.CRASHED, f"the worker {before}{how}{said}")

    def _raise(self, answer: Answer) -> None:
        if answer.lost or (answer.exhausted and not self.is_joined):  # other ranks may wait for a rank
            self.end()  # what its allocator keeps is memory for others
        raise CaseEndError(failure(exhausted=answer.exhausted), answer.error)
