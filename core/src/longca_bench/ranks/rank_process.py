"""The process of a rank, which draws inputs, computes references and compares, together with the other ranks.

It is called as `python -P -m longca_bench.ranks.rank_process FD`, and talks over the file descriptor FD: first it gets
its `Setup`, then one task at a time. For each it sends the phases that it begins, and then the result. Strategies and
kernels run in its worker.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from longca.kernels.base import torch_device
from longca.processes import end_with_parent
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.child_process import connection_of
from longca_bench.measuring.messages import Phase, Setup, to_json
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import Instruments, Phases
from longca_bench.ranks.world import JobWorld

__all__: list[str] = []


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the leader handles Ctrl-C
    end_with_parent()
    try:
        _serve(connection_of(sys.argv[1]))
    except (EOFError, ConnectionError):
        return


def _serve(connection: Connection) -> None:
    """Measures tasks until the connection is closed. A process that can measure nothing more waits for its end."""
    setup: Setup = connection.recv()
    assert setup.place is not None, "a rank has a place"
    phases = Phases(lambda name: connection.send_bytes(to_json(Phase(name))))
    phases("joining")
    world = JobWorld(torch_device(setup.device), setup.place)
    workers = Workers(world.device, setup.memory)
    bench = Bench(setup.device, Instruments(world, workers, phases), setup.with_backward, setup.wait_idle)
    phases("ready")
    try:
        while True:
            result = bench.result(connection.recv(), None)
            connection.send_bytes(to_json(replace(result, is_last=result.is_last or _is_lost())))
            torch.cuda.empty_cache()
    finally:
        workers.close()


def _is_lost() -> bool:
    """Whether the CUDA context can do nothing more, as after an illegal memory access."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main()
