"""The worker: a process of its own that measures one case after another, so that a case can end it and nothing else.

It is started as `python -m longca.bench.worker FD`, in a session of its own, and talks over that file descriptor:
`Setup` first, then a case at a time; for each it says which phase it is in, and last what came of it. When whoever
started it is gone, it ends itself and all that it started.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from longca import plugins
from longca.bench.cases import Case
from longca.bench.measure import Bench
from longca.bench.messages import Outcome, Phase, Setup

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1


def measure(case: Case, bench: Bench, registry: plugins.Registry) -> Outcome:
    """Measures a case; whatever its kernel raises is a result."""
    try:
        offer = registry.resolve(case.kernel, case.problem(bench.device)).offer
        measured = bench.measure(case, registry.load(case.kernel), rough_lse=offer is not None and offer.rough_lse)
    except (torch.OutOfMemoryError, MemoryError) as error:
        return Outcome("oom", _described(error), {})
    except Exception as error:  # whatever a kernel raises is a result of that kernel
        exhausted = "can't allocate memory" in str(error)  # what torch says where a CPU's memory is out
        return Outcome("oom" if exhausted else "error", _described(error), {})
    if measured.timing is None:
        return Outcome("wrong", "; ".join(map(str, measured.verification.failures)), measured.fields())
    return Outcome("ok", "", measured.fields())


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _poisoned() -> bool:
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
        if _poisoned():
            connection.send(replace(outcome, is_last=True))
            return
        torch.cuda.empty_cache()
        connection.send(outcome)


def _end_with_parent(lifeline: int) -> None:
    """Ends this process, and all that it started, when the other end of a pipe is closed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    _end_with_parent(int(sys.argv[2]))
    try:
        serve(Connection(int(sys.argv[1])))
    except EOFError:
        return


if __name__ == "__main__":
    main()
