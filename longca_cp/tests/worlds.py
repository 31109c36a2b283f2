"""Worlds: processes that make up a gloo world, and run jobs together. They end with their tests in every case."""

import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

WORKER = Path(__file__).parent / "world_worker.py"
#: Seconds that a job may take. Collectives give up sooner, so that what hangs says where.
DEADLINE = 300


class WorldError(AssertionError):
    """A job failed on some rank."""


class World:
    """Some processes with each other's addresses. A job runs on all of them at once.

    Args:
        size: Number of processes.
    """

    def __init__(self, size):
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._answers = queue.Queue()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "LONGCA_PLUGINS": "cp",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._errors = open(f"{self._folder.name}/errors", "w+b")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(size), f"{self._folder.name}/store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,  # so that all of its processes can be ended at once
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self, job, *args, **kwargs):
        """The results of a function of the `*jobs` modules on each rank.

        Raises:
            WorldError: It raised on some rank, or took longer than the deadline. The world has ended then.
        """
        pickle.dump((job, args, kwargs), self._process.stdin)
        self._process.stdin.flush()
        results = [None] * self.size
        for _ in range(self.size):
            try:
                rank, failed, result = self._answers.get(timeout=DEADLINE)
            except queue.Empty:
                rank, failed, result = "?", True, f"not done within {DEADLINE} s"
            if failed:
                said = self._said()
                self.end()
                raise WorldError(f"{job}{args} failed on rank {rank} of {self.size}: {result}\n{said}")
            results[rank] = result
        return results

    @property
    def ended(self):
        """Whether it is gone."""
        return self._process.poll() is not None

    def end(self):
        """Ends all processes, at once if they do not by themselves."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
        self._folder.cleanup()

    def _listen(self):
        while True:
            try:
                self._answers.put(pickle.load(self._process.stdout))
            except (EOFError, ValueError, OSError):
                self._answers.put(("?", True, "the world has ended"))
                return

    def _said(self):
        self._errors.seek(0)
        return self._errors.read()[-4000:].decode(errors="replace")
