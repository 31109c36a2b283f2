"""Probing: each plugin without a cached answer is imported in its own process first.

A hang or an `os._exit` cannot be caught inside a process. Several plugins are probed at the same time. Each probe has
its own process group, so no process that a plugin started outlives the probe.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread
from typing import IO

from longca.discovery.candidates import Candidate
from longca.discovery.probe_cache import Answer, recall, remember
from longca.errors import PluginError, RequestError

__all__ = ["probe_all"]

_TIMEOUT_S = 60.0
_AT_ONCE = max(4, os.cpu_count() or 1)
_KEPT_OUTPUT = 4096
_INSIDE = "LONGCA_INSIDE_PROBE"


def probe_all(candidates: Iterable[Candidate], again: bool = False) -> dict[Candidate, Answer]:
    """Returns the import result of each plugin, from the cache or from a new probe.

    Args:
        candidates: The plugins.
        again: Whether to probe plugins again whose answers are cached.

    Raises:
        RequestError: LONGCA_PROBE_TIMEOUT is not a positive number of seconds.
        PluginError: A plugin asks for the registry while it is probed.
    """
    answers = {c: None if again else recall(c) for c in candidates}
    unseen = [candidate for candidate, answer in answers.items() if answer is None]
    fresh = _probe_unseen(unseen) if unseen else {}
    return {candidate: answer or fresh[candidate] for candidate, answer in answers.items()}


def _probe_unseen(waiting: list[Candidate]) -> dict[Candidate, Answer]:
    if _INSIDE in os.environ:
        raise PluginError("a plugin asks for longca's registry while it is imported; it must not")
    timeout = _timeout()
    running: dict[Candidate, _Probe] = {}
    answers: dict[Candidate, Answer] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                candidate = waiting.pop()
                try:
                    running[candidate] = _Probe(candidate, timeout)
                except (OSError, ValueError) as error:
                    answers[candidate] = Answer(f"no process could be started to import it: {error}")
            for candidate in [candidate for candidate, probe in running.items() if probe.is_over()]:
                answers[candidate] = running.pop(candidate).answer()
                remember(candidate, answers[candidate])
            time.sleep(0.005)
    finally:
        for probe in running.values():
            probe.kill()
    return answers


def _timeout() -> float:
    text = os.environ.get("LONGCA_PROBE_TIMEOUT") or str(_TIMEOUT_S)
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise RequestError(f"LONGCA_PROBE_TIMEOUT is {text!r}; give a number of seconds above 0")


class _Probe:
    """The process that probes one plugin."""

    def __init__(self, candidate: Candidate, timeout: float) -> None:
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        target = f"{candidate.module}:{candidate.attr}" if candidate.attr else candidate.module
        # -P keeps the working folder off sys.path. It may not be on this process's path either.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "longca.discovery.probe", target],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), _INSIDE: "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdout, self._stderr = _Tail(self._process.stdout), _Tail(self._process.stderr)

    def is_over(self) -> bool:
        return self._process.poll() is not None or time.monotonic() > self._deadline

    def kill(self) -> None:
        """Kills the process and every process that it left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def answer(self) -> Answer:
        status = self._process.poll()
        self.kill()
        said = self._stderr.last_line()
        if status is None:
            slow = "if it is only slow, give LONGCA_PROBE_TIMEOUT more seconds and run `longca plugins --reprobe`"
            return Answer(_with_output(f"its import did not end within {self._timeout:g} s; {slow}", said))
        if status < 0:
            return Answer(_with_output(f"its import was killed by {_signal_name(-status)}", said))
        try:
            answer = json.loads(self._stdout.last_line())
            error, imports_torch = str(answer["error"]), bool(answer["imports_torch"])
        except (ValueError, KeyError, TypeError):
            return Answer(_with_output(f"its import ended the process with status {status}", said))
        problem = f"its import raised {' '.join(error.split())}" if error else ""
        if status and not error:
            problem = _with_output(f"the process that imported it ended with status {status}", said)
        return Answer(problem, imports_torch)


class _Tail:
    """Keeps the end of a process's output. Earlier output is discarded as it arrives."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._stream as stream:
            while chunk := os.read(stream.fileno(), 2**16):
                self._kept = (self._kept + chunk)[-_KEPT_OUTPUT:]

    def last_line(self) -> str:
        # A process that left the group may still keep the pipe open, so the wait has a short limit.
        self._reader.join(0.5)
        lines = self._kept.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _with_output(problem: str, said: str) -> str:
    return f"{problem}; its last output: {said[:300]}" if said else problem


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
