"""Keeping: a judge's handle on its keeper and on each worker process. This needs no torch."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from longca.import_path import safe_environment, safe_python
from longca.plain_text import plain_text
from longca.processes import computed, end_all, how_it_ended, stop_all
from longca_bench.measuring.cgroup import computed_in, end_cgroups, group_of
from longca_bench.measuring.processor import computed_below

__all__ = ["Keeper", "WorkerProcess", "workers_environment"]

_MODULE = "longca_bench.measuring.keeper"
_START = 120.0  # seconds: importing torch on a busy machine takes long
_ANSWER = 10.0  # seconds in which a keeper answers, unless something stopped it
_PAUSE = 0.01
_READ = 0.2  # seconds in which the output of a worker that has ended is read
_LAST_WORDS = 2000  # characters of a worker's output that are kept
#: Variables that name folders of the user's. A run may be below them.
_FOLDERS = ("PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD", "SGE_O_WORKDIR")
#: Variables that the judge goes by: its files, its plugins, and the test that it runs in.
_JUDGES = ("LONGCA_HISTORY", "LONGCA_VERIFIED", "LONGCA_PLUGINS", "PYTEST_CURRENT_TEST")
#: What keeps libraries steady while calls are timed. PyTorch's pool of compilers starts a thread at its first answer,
#: which may come in a timed call on a busy machine. The thread only counts down to a pause of the pool.
_STEADY = {"TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL": "0"}


def workers_environment(own: Iterable[str] = ()) -> dict[str, str]:
    """The environment of workers: this process's, without what they must not know, and with what keeps them steady.

    Args:
        own: Further variables that are this process's alone.
    """
    hidden = {*_FOLDERS, *_JUDGES, *own}
    return {name: value for name, value in safe_environment().items() if name not in hidden} | _STEADY


class KeeperLostError(Exception):
    """The keeper does not answer. A worker may have stopped or ended it."""


class Keeper:
    """The keeper of a judge's workers. It starts at once, and again after it was lost.

    Args:
        environment: The environment of the workers.
        folder: A folder for the workers' own folders. None makes one.

    Attributes:
        times_lost: How often it was lost. All workers that had been started are lost with it.
    """

    def __init__(self, environment: dict[str, str], folder: str | None = None) -> None:
        self._environment, self._folder = environment, folder or tempfile.mkdtemp(prefix="longca-")
        self._workers: set[int] = set()
        self._resting: set[int] = set()
        self.times_lost = 0
        self._launch()

    def start(self, setup: object) -> WorkerProcess:
        """Starts a worker.

        Args:
            setup: The first argument of `longca_bench.measuring.worker.serve`, after the connection.
        """
        for is_last in (False, True):
            ours, theirs = Pipe()
            heard, said = os.pipe()
            try:
                pid = self._ask(("start", setup), _START, theirs.fileno(), said)
            except KeeperLostError:
                ours.close()
                os.close(heard)
                if is_last:
                    raise
                self._relaunch()
            else:
                self._workers.add(pid or 0)
                return WorkerProcess(self, pid or 0, ours, heard)
            finally:
                theirs.close()
                os.close(said)
        raise AssertionError("the second attempt returns or raises")

    def end(self, worker: WorkerProcess, *, is_lost: bool) -> str:
        """Ends a worker and everything that it started, and says how it ended.

        Args:
            worker: The worker.
            is_lost: Whether its connection is closed, so that it has ended or is about to.
        """
        self._workers.discard(worker.pid)
        self._resting.difference_update(worker.resting)
        code = self._code(worker.pid) if is_lost else None
        end_cgroups(self._owner, worker.pid)
        if self._process.poll() is None:
            end_all((self._process.pid,), spared=self._workers)
        return "closed its connection and went on" if code is None else how_it_ended(code)

    def rest(self, worker: WorkerProcess) -> list[int]:
        """Stops a worker and everything that it has started, also what it gave away to the keeper.

        Returns:
            The processes that were stopped.
        """
        mine = stop_all((self._process.pid,), spared={*self._workers, *self._resting} - {worker.pid})
        self._resting.update(mine)
        return mine

    def wake(self, resting: list[int]) -> None:
        """Lets processes go on that `rest` has stopped."""
        self._resting.difference_update(resting)
        _signal(resting, signal.SIGCONT)

    def group_of(self, worker: WorkerProcess) -> Path | None:
        """The control group of a worker, or None if it has none."""
        return group_of(self._owner, worker.pid)

    def computed_below_workers(self) -> float:
        """Seconds that processes which workers have started computed. Those of other workers are stopped."""
        return computed_below({self._process.pid, *self._workers})

    def close(self) -> None:
        """Ends all workers, everything that they started, and the keeper."""
        self._workers.clear()
        self._resting.clear()
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)  # it starts nothing more, and its children stay its own
        end_all((self._process.pid,))
        end_cgroups(self._owner)
        self._process.kill()
        self._process.wait()
        self._control.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _owner(self) -> str:
        """The owner of the workers' groups: this process and the keeper."""
        return f"{os.getpid()}-{self._process.pid}"

    def _code(self, pid: int) -> int | None:
        """The exit code of a worker, or None if it still runs after a while, or nobody knows."""
        deadline = time.monotonic() + _ANSWER
        try:
            while (code := self._ask(("ended", pid), _ANSWER)) is None and time.monotonic() < deadline:
                time.sleep(_PAUSE)
        except KeeperLostError:
            self._relaunch()
            return None
        return code

    def _launch(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        self._control, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            safe_python("-m", _MODULE, str(theirs.fileno()), self._folder, str(os.getpid())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C does not reach a group of its own
            env=self._environment,
        )
        theirs.close()

    def _relaunch(self) -> None:
        """Another keeper in place of one that does not answer. Its workers are ended with it."""
        self.close()
        self.times_lost += 1
        self._launch()

    def _ask(self, message: object, seconds: float, *fds: int) -> int | None:
        try:
            self._control.settimeout(_ANSWER)
            socket.send_fds(self._control, [pickle.dumps(message)], fds)
            self._control.settimeout(seconds)
            answer = self._control.recv(2**12)
        except OSError as error:
            raise KeeperLostError from error
        if not answer:
            raise KeeperLostError
        found: int | None = json.loads(answer)
        return found


class WorkerProcess:
    """A worker process, its connection, and the last of its output.

    Args:
        keeper: The keeper that started it.
        pid: Its number.
        connection: The judge's end of the connection.
        output: A descriptor to read its output from.

    Attributes:
        pid: Its number.
        connection: The judge's end of the connection.
        resting: The processes that were stopped with it when it was told to rest.
        echoes: Whether its output goes to this process's standard error too.
    """

    def __init__(self, keeper: Keeper, pid: int, connection: Connection, output: int) -> None:
        self.pid, self.connection = pid, connection
        self._keeper, self._times_lost = keeper, keeper.times_lost
        self.resting: list[int] = []
        self.echoes = False
        self._group: Path | Literal[False] | None = None  # False without one, None until it is looked for
        self._last: deque[bytes] = deque(maxlen=8)
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    @property
    def is_orphan(self) -> bool:
        """Whether its keeper was lost since it was started, and it ended with it."""
        return self._times_lost != self._keeper.times_lost

    @property
    def last_words(self) -> str:
        """The last of what the worker printed, as plain text."""
        self._reader.join(_READ)
        return plain_text(b"".join(self._last).decode("utf-8", "replace")[-_LAST_WORDS:].strip(), _LAST_WORDS)

    def rest(self) -> None:
        """Stops it and everything that it has started, so that nothing of it can slow down another worker."""
        self.resting = self._keeper.rest(self)

    def wake(self) -> None:
        """Lets it go on."""
        self._keeper.wake(self.resting)

    def computed_by_others(self) -> float:
        """Seconds that the processes which the worker has started computed, also what it gave away to the keeper.

        Processes that have ended count if the worker has a control group, or if their parents waited for them.
        """
        if self._group is None:
            self._group = self._keeper.group_of(self) or False
        if self._group:
            return computed_in(self._group) - computed(self.pid)
        return self._keeper.computed_below_workers()

    def pause(self) -> None:
        """Stops the worker itself, so that it computes nothing while its results are read."""
        _signal((self.pid,), signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused worker go on."""
        _signal((self.pid,), signal.SIGCONT)

    def end(self, *, is_lost: bool) -> str:
        """Ends it with everything that it started, and says how it ended.

        Args:
            is_lost: Whether its connection is closed, so that it has ended or is about to.
        """
        with suppress(OSError):
            self.connection.close()
        how = self._keeper.end(self, is_lost=is_lost and not self.is_orphan)  # another keeper knows no orphan's code
        if self.echoes:
            self._reader.join(_READ)
        return how

    def _read(self, output: int) -> None:
        with os.fdopen(output, "rb", buffering=0) as words, suppress(OSError):
            while said := words.read(2**12):
                self._last.append(said)
                if self.echoes:
                    os.write(2, said)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
