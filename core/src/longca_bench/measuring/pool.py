"""Handles on workers: start one, give it a task, and end it with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from longca.errors import LongCAError
from longca_bench.measuring.messages import Phase, Result, Setup
from longca_bench.measuring.status import Status
from longca_bench.suites.tasks import Task

__all__ = ["Worker"]

_START = 120.0  # seconds: importing torch on a busy machine takes long
_MODULE = "longca_bench.measuring.worker"


class Worker:
    """One worker process. It starts when it is first needed, and again after it died.

    Args:
        setup: Its setup.
        gpu: Number of the one visible GPU that it may use, or None for all GPUs.
    """

    def __init__(self, setup: Setup, gpu: int | None = None) -> None:
        self._setup, self._gpu = setup, gpu
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lifeline = -1

    def run(self, task: Task, seconds: float) -> Result:
        """Measures a case within a deadline.

        Args:
            task: The case.
            seconds: The deadline. It starts when the worker takes the task.
        """
        self._ready()
        self.give(task)
        deadline, phase = time.monotonic() + seconds, "start"
        while True:
            said = self.hear(max(0.0, deadline - time.monotonic()))
            if said is None:
                self.kill()
                return Result(Status.TIMEOUT, f"still in phase {phase!r} after {seconds:g} s; it was ended", {})
            if isinstance(said, Result):
                lost = said.status is Status.CRASHED
                return Result(Status.CRASHED, f"{said.message} in phase {phase!r}", {}) if lost else said
            phase = said.name

    def give(self, message: Setup | Task) -> None:
        """Sends the worker a message. If the worker is gone, the next `hear` says so."""
        assert self._connection is not None, "a worker is started before it is given anything"
        with suppress(OSError):
            self._connection.send(message)

    def hear(self, seconds: float) -> Phase | Result | None:
        """The worker's next message within some seconds, or None.

        The worker has been ended before its last result, or the result of its crash, is returned.
        """
        assert self._connection is not None, "a worker is started before it is heard"
        try:
            if not self._connection.poll(seconds):
                return None
            said = self._connection.recv()
        except (EOFError, OSError):
            return Result(Status.CRASHED, self._how_it_died(), {}, is_last=True)
        if isinstance(said, Phase):
            return said
        if not isinstance(said, Result):
            said = Result(Status.CRASHED, "the worker sent something other than a result", {}, is_last=True)
        if said.is_last:
            self.kill()
        return said

    def kill(self) -> None:
        """Ends the worker and everything that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._connection is not None:
            self._connection.close()
        os.close(self._lifeline)
        self._process = self._connection = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None and self._connection is not None

    def launch(self) -> None:
        """Starts a new process, and sends it its setup. The process answers with the phase `ready`."""
        self.kill()
        ours, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        command = [sys.executable, "-m", _MODULE, str(theirs.fileno()), str(watched)]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), watched),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=self._environment(),
        )
        theirs.close()
        os.close(watched)
        self._connection = ours
        self.give(self._setup)

    def _ready(self) -> None:
        if self.is_running:
            return
        self.launch()
        said = self.hear(_START)
        if isinstance(said, Phase):
            return
        how = said.message if said is not None else self._how_it_died()
        raise LongCAError(f"a worker process could not be started: {how}. What it printed says why")

    def _environment(self) -> dict[str, str]:
        if self._gpu is None or self._setup.device.kind != "cuda":
            return dict(os.environ)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [str(index) for index in range(self._gpu + 1)]
        return {**os.environ, "CUDA_VISIBLE_DEVICES": names[self._gpu]}

    def _how_it_died(self) -> str:
        """The way in which the process ended. Everything that it started is ended too."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        if code is None:
            return "the worker closed its connection and went on"
        if code >= 0:
            return f"the worker exited with code {code}"
        return f"the worker was ended by {signal.Signals(-code).name}"
