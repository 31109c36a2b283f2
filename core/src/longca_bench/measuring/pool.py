"""Handles on workers: starting one, giving it a case, and ending it with everything that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from longca.errors import LongCAError
from longca_bench.measuring.messages import Outcome, Phase

__all__ = ["Worker"]

_START = 120.0  # seconds: importing torch on a busy machine takes some


class Worker:
    """One worker process, started when it is first needed and again after it died.

    Args:
        setup: What it is told: a `Setup`, or what another module that serves as a worker takes.
        gpu: Which of the visible GPUs it has to itself; None for all.
        module: What it runs.
    """

    def __init__(self, setup: Any, gpu: int | None = None, module: str = "longca_bench.measuring.worker") -> None:
        self._setup, self._gpu, self._module = setup, gpu, module
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lifeline = -1

    def run(self, case: Any, seconds: float) -> Outcome:
        """Measures a case within a deadline.

        Args:
            case: The case.
            seconds: The deadline, from when the worker takes the case.
        """
        self._ready()
        self.give(case)
        deadline, phase = time.monotonic() + seconds, "start"
        while True:
            said = self.hear(max(0.0, deadline - time.monotonic()))
            if said is None:
                self.kill()
                return Outcome("timeout", f"still in phase {phase!r} after {seconds:g} s; it was ended", {})
            if isinstance(said, Outcome):
                lost = said.status == "crashed"
                return Outcome("crashed", f"{said.message} in phase {phase!r}", {}) if lost else said
            phase = said.name

    def give(self, case: Any) -> None:
        """Has the worker take a case; one that is gone says so when it is next heard."""
        assert self._connection is not None, "a worker is started before it is given anything"
        with suppress(OSError):
            self._connection.send(case)

    def hear(self, seconds: float) -> Phase | Outcome | None:
        """What the worker says next, within some seconds; None where it says nothing.

        An outcome that is its last, or that it crashed, comes when the worker has been ended.
        """
        assert self._connection is not None, "a worker is started before it is heard"
        try:
            if not self._connection.poll(seconds):
                return None
            said = self._connection.recv()
        except (EOFError, OSError):
            return Outcome("crashed", self._how_it_died(), {}, is_last=True)
        if isinstance(said, Phase):
            return said
        if not isinstance(said, Outcome):
            said = Outcome("crashed", "the worker said something else than a result", {}, is_last=True)
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
        """Starts the process anew, and tells it its setup; it says `ready` when it is."""
        self.kill()
        ours, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        command = [sys.executable, "-m", self._module, str(theirs.fileno()), str(watched)]
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
        """What became of the process; whatever it started is ended too."""
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
