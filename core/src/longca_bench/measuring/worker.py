"""The worker: a process that measures one case after another, alone or as one of several ranks.

A case can end its worker and nothing else. `longca_bench.measuring.pool` starts it as `python -m
longca_bench.measuring.worker FD LIFELINE`, in a session of its own. It talks over the file descriptor FD: first it gets
its `Setup`, then one `Task` at a time. For each task it sends the phases that it begins, and then the result. It ends
with the process that started it, and everything that it started ends with it.
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
from longca.kernels.base import torch_device
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.instruments import Instruments
from longca_bench.measuring.messages import Phase, Result, Setup
from longca_bench.measuring.status import Status
from longca_bench.measuring.world import World
from longca_bench.suites.tasks import Task

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1
_guard: subprocess.Popen[bytes] | None = None


def _measure(task: Task, bench: Bench) -> Result:
    """Measures a case. An exception of a kernel or a strategy is a result."""
    try:
        return bench.measure(task)
    except Exception as error:  # whatever a kernel or a strategy raises is a result of the case
        # PyTorch has these words if a CPU's memory is out.
        exhausted = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
        return Result(Status.OOM if exhausted else Status.ERROR, f"{type(error).__name__}: {error}", {})


def _poisoned() -> bool:
    """Whether the CUDA context can do nothing more, as after an illegal memory access."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _world(setup: Setup) -> World:
    if setup.place is None:
        return World(torch_device(setup.device))
    # Only ranks import torch.distributed.
    from longca_bench.ranks.world import JobWorld

    return JobWorld(setup.device, setup.place)


def _serve(connection: Connection) -> None:
    """Answers tasks until the connection is closed, or the CUDA context is lost."""
    setup: Setup = connection.recv()
    if setup.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory, setup.memory))

    def announce(name: str) -> None:
        connection.send(Phase(name))

    if setup.place is not None:
        announce("joining")
    instruments = Instruments(_world(setup), plugins.registry(setup.disabled), announce)
    bench = Bench(setup.device, instruments, setup.with_backward)
    announce("ready")
    while True:
        result = _measure(connection.recv(), bench)
        if _poisoned():
            connection.send(replace(result, is_last=True))
            return
        torch.cuda.empty_cache()
        connection.send(result)


def _end_with_parent(lifeline: int) -> None:
    """Ends this process, and everything that it started, when the other end of a pipe is closed.

    The operating system ends this process with its parent, at once. A guard in its process group waits for the pipe,
    and then ends everything that this process started. A thread of this process could be ended before it does that.
    """
    global _guard
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    command = ["sh", "-c", "read line; kill -KILL 0"]
    _guard = subprocess.Popen(command, stdin=lifeline, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(lifeline)


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it handles Ctrl-C
    _end_with_parent(int(sys.argv[2]))
    try:
        _serve(Connection(int(sys.argv[1])))
    except EOFError:
        return


if __name__ == "__main__":
    main()
