"""The runner's handle on a judge: start one, give it a case, and end it with everything below it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from longca.errors import LongCAError
from longca.import_path import safe_environment, safe_python
from longca.processes import end_all, how_it_ended
from longca_bench.measuring.cgroup import end_cgroups
from longca_bench.measuring.messages import Order, Phase, Result, Setup, from_json
from longca_bench.measuring.status import Status
from longca_bench.suites.tasks import Task

__all__ = ["Judge"]

_START = 120.0  # seconds: importing torch on a busy machine takes long
#: Seconds after a deadline until a judge that has not kept it is ended.
_GRACE = 30.0
_MODULE = "longca_bench.measuring.judge"
#: A judge's idle threads must not spin on the cores that its worker computes on.
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE"}


class Judge:
    """One judge process. It starts when it is first needed, and again after it died.

    Args:
        setup: Its setup.
        gpu: Number of the one visible GPU that it may use, or None for all GPUs.
    """

    def __init__(self, setup: Setup, gpu: int | None = None) -> None:
        self._setup, self._gpu = setup, gpu
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._folder = ""

    def run(self, task: Task, seconds: float) -> Result:
        """Measures a case within a deadline.

        If the judge itself fails after other cases, one of them may have harmed it, and a new judge measures this case.

        Args:
            task: The case.
            seconds: The deadline. It starts when the judge takes the task.
        """
        had_others = self.is_running
        result = self._run(task, seconds)
        return self._run(task, seconds) if result.is_judges and had_others else result

    def _run(self, task: Task, seconds: float) -> Result:
        self._ready()
        self.give(Order(task, seconds))
        deadline, phase = time.monotonic() + seconds + _GRACE, "start"
        while True:
            said = self.hear(max(0.0, deadline - time.monotonic()))
            if said is None:
                self.kill()
                late = f"is still in phase {phase!r} after {seconds + _GRACE:g} s; it was ended"
                return Result(Status.TIMEOUT, f"the judge, which makes inputs and references, {late}", {})
            if isinstance(said, Result):
                lost = said.is_last and said.status is Status.CRASHED
                return Result(Status.CRASHED, f"{said.message} in phase {phase!r}", {}) if lost else said
            phase = said.name

    def give(self, message: Setup | Order) -> None:
        """Sends the judge a message. If the judge is gone, the next `hear` says so."""
        assert self._connection is not None, "a judge is started before it is given anything"
        with suppress(OSError):
            self._connection.send(message)

    def hear(self, seconds: float) -> Phase | Result | None:
        """The judge's next message within some seconds, or None.

        The judge has been ended before its last result, or the result of its crash, is returned.
        """
        assert self._connection is not None, "a judge is started before it is heard"
        try:
            if not self._connection.poll(seconds):
                return None
            said: Phase | Result = from_json(self._connection.recv_bytes(), Phase | Result)
        except (EOFError, OSError):
            return Result(Status.CRASHED, self._how_it_died(), {}, is_last=True)
        if isinstance(said, Result) and said.is_last:
            self.kill()
        return said

    def kill(self) -> None:
        """Ends the judge and everything below it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)  # it starts nothing more
        end_all((self._process.pid,))
        end_cgroups(f"{self._process.pid}-*")
        self._process.kill()
        self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None and self._connection is not None

    def launch(self) -> None:
        """Starts a new process, and sends it its setup. The process answers with the phase `ready`."""
        self.kill()
        ours, theirs = Pipe()
        self._folder = tempfile.mkdtemp(prefix="longca-")
        added = {name: value for name, value in _QUIET.items() if name not in os.environ}
        self._process = subprocess.Popen(
            safe_python("-m", _MODULE, str(theirs.fileno()), ",".join(added), self._folder),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**self._environment(), **added},
        )
        theirs.close()
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
        raise LongCAError(f"a judge process could not be started: {how}. What it printed says why")

    def _environment(self) -> dict[str, str]:
        if self._gpu is None or self._setup.device.kind != "cuda":
            return safe_environment()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        names = visible.split(",") if visible else [str(index) for index in range(self._gpu + 1)]
        return {**safe_environment(), "CUDA_VISIBLE_DEVICES": names[self._gpu]}

    def _how_it_died(self) -> str:
        """The way in which the process ended. Everything below it is ended too."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return "the judge closed its connection and went on" if code is None else f"the judge {how_it_ended(code)}"
