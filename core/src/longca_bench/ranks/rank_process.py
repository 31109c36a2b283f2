"""The process of a rank, which draws inputs, computes references and compares, together with the other ranks.

It is called as `python -P -m longca_bench.ranks.rank_process FD`. It gets its `Setup`, and then one task at a time. For
each it sends the phases that it begins, and then the result. Strategies and kernels run in its worker.
"""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from longca.kernels.base import torch_device
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.child_process import serve
from longca_bench.measuring.memory import is_device_lost
from longca_bench.measuring.messages import Setup, to_json
from longca_bench.measuring.worker import Workers
from longca_bench.measuring.world import Instruments, Phases
from longca_bench.ranks.world import JobWorld

__all__: list[str] = []


def _serve(connection: Connection) -> None:
    """Measures tasks until the connection is closed. A process that can measure nothing more waits for its end."""
    setup: Setup = connection.recv()
    assert setup.place is not None, "a rank has a place"
    phases = Phases(lambda name: connection.send_bytes(to_json(name)))
    phases("joining")
    world = JobWorld(torch_device(setup.device), setup.place)
    workers = Workers(world.device, setup.options.memory)
    bench = Bench(setup, Instruments(world, workers, phases))
    phases("ready")
    try:
        while True:
            result = bench.result(connection.recv(), None)
            connection.send_bytes(to_json(replace(result, is_last=result.is_last or is_device_lost())))
            torch.cuda.empty_cache()
    finally:
        workers.close()


if __name__ == "__main__":
    serve(_serve)
