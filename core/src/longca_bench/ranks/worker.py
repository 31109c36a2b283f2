"""The worker: one rank of a world, a process that measures one case after another with the others.

Started as `python -m longca_bench.ranks.worker FD LIFELINE` by its member, as `longca_bench.measuring.worker` is by the
runner: it is told its `RankSetup`, then a task at a time, and says which phase it is in and what came of each. One that
raised goes no further: its world has lost step, and is ended as a whole.
"""

from __future__ import annotations

import resource
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from longca import plugins
from longca_bench.measuring.messages import Phase
from longca_bench.measuring.worker import end_with_parent, failure, poisoned
from longca_bench.ranks.bench import RankBench
from longca_bench.ranks.messages import RankSetup
from longca_bench.ranks.world import World

__all__: list[str] = []


def serve(connection: Connection) -> None:
    """Answers tasks until the connection is closed, or the CUDA context is lost."""
    told: RankSetup = connection.recv()
    setup = told.setup
    if setup.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (setup.memory, setup.memory))

    def announce(phase: str) -> None:
        connection.send(Phase(phase))

    announce("joining")
    registry = plugins.registry(setup.disabled)
    world = World(told)
    bench = RankBench(setup.device, world, registry, setup.with_backward, announce)
    announce("ready")
    while True:
        task = connection.recv()
        try:
            outcome = bench.measure(task)
        except Exception as error:  # whatever a kernel or a strategy raises is a result of the case
            outcome = failure(error)
        if poisoned():
            connection.send(replace(outcome, is_last=True))
            return
        if setup.device.kind == "cuda":
            torch.cuda.empty_cache()
        connection.send(outcome)


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the member's to handle
    end_with_parent(int(sys.argv[2]))
    try:
        serve(Connection(int(sys.argv[1])))
    except EOFError:
        return


if __name__ == "__main__":
    main()
