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

from longca.bench.cases import Case
from longca.bench.messages import Outcome, Phase, Setup
from longca.errors import LongCAError

__all__ = ["Worker"]

_START = 120.0  # seconds: importing torch on a busy machine takes some


class Worker:
    """One worker process, started when it is first needed and again after it died.

    Args:
        setup: What it is told.
        gpu: Which of the visible GPUs it has to itself; None for all.
    """

    def __init__(self, setup: Setup, gpu: int | None = None) -> None:
        self._setup, self._gpu = setup, gpu
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lifeline = -1

    def run(self, case: Case, seconds: float) -> Outcome:
        """Measures a case within a deadline.

        Args:
            case: The case.
            seconds: The deadline, from when the worker takes the case.
        """
        connection = self._ready()
        connection.send(case)
        deadline, phase = time.monotonic() + seconds, "start"
        while True:
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    return Outcome("timeout", f"still in phase {phase!r} after {seconds:g} s; it was ended", {})
                said = connection.recv()
            except (EOFError, OSError):
                return Outcome("crashed", f"{self._how_it_died()} in phase {phase!r}", {})
            if isinstance(said, Phase):
                phase = said.name
            elif isinstance(said, Outcome):
                if said.is_last:
                    self.kill()
                return said
            else:
                self.kill()
                return Outcome("crashed", f"the worker said something else than a result in phase {phase!r}", {})

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

    def _ready(self) -> Connection:
        if self._process is not None and self._process.poll() is None and self._connection is not None:
            return self._connection
        self.kill()
        ours, theirs = Pipe()
        watched, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "longca.bench.worker", str(theirs.fileno()), str(watched)]
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
        try:
            ours.send(self._setup)
            if ours.poll(_START):
                ours.recv()
                return ours
        except (EOFError, OSError):
            pass
        how = self._how_it_died()
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
