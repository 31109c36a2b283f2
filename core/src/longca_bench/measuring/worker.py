"""The worker: a process of its own that measures one case after another.

A case can end the worker and nothing else. The runner starts it as `python -m longca_bench.measuring.worker FD`, in a
session of its own. They talk over that file descriptor: first a `Setup`, then one case at a time. For each case the
worker says which phase it is in, and then its outcome. It ends itself, and all that it started, with the runner.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from longca import plugins
from longca_bench.measuring.measure import Bench
from longca_bench.measuring.messages import Outcome, Phase, Setup
from longca_bench.suites.cases import Case

__all__ = ["end_with_parent", "failure", "poisoned"]

_PR_SET_PDEATHSIG = 1
_guard: subprocess.Popen[bytes] | None = None


def measure(case: Case, bench: Bench, registry: plugins.Registry) -> Outcome:
    """Measures a case; whatever its kernel raises is a result."""
    try:
        verdict = registry.resolve(case.kernel, case.problem(bench.device))
        measured = bench.measure(case, registry.load(case.kernel), rough_lse=verdict.rough_lse)
    except Exception as error:  # whatever a kernel raises is a result of that kernel
        return failure(error)
    if measured.timing is None:
        return Outcome("wrong", "; ".join(map(str, measured.verification.failures)), measured.fields())
    return Outcome("ok", "", measured.fields())


def failure(error: Exception) -> Outcome:
    """What comes of a case that raised."""
    # The text is what torch says where a CPU's memory is out.
    exhausted = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
    return Outcome("oom" if exhausted else "error", f"{type(error).__name__}: {error}", {})


def poisoned() -> bool:
    """Whether the CUDA context can do nothing more, as after an illegal memory access."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def serve(connection: Connection) -> None:
    """Answers cases until the connection is closed, or the CUDA context is lost."""
    setup: Setup = connection.recv()
    if setup.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory, setup.memory))
    registry = plugins.registry(setup.disabled)
    bench = Bench(setup.device, with_backward=setup.with_backward, announce=lambda name: connection.send(Phase(name)))
    connection.send(Phase("ready"))
    while True:
        outcome = measure(connection.recv(), bench, registry)
        if poisoned():
            connection.send(replace(outcome, is_last=True))
            return
        torch.cuda.empty_cache()
        connection.send(outcome)


def end_with_parent(lifeline: int) -> None:
    """Ends this process, and all that it started, when the other end of a pipe is closed.

    The kernel ends this process with its parent, and at once. What it started is ended by a guard in its process group,
    which waits for the pipe: a thread of this process could be ended before it got to that.
    """
    global _guard
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    command = ["sh", "-c", "read line; kill -KILL 0"]
    _guard = subprocess.Popen(command, stdin=lifeline, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(lifeline)


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    end_with_parent(int(sys.argv[2]))
    try:
        serve(Connection(int(sys.argv[1])))
    except EOFError:
        return


if __name__ == "__main__":
    main()
