"""Judging: the work of a judge process, which draws inputs, computes references, compares results and holds the clock.

It runs no kernel. Kernels run in workers, and a worker can end a case and nothing else.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from longca.errors import LongCAError
from longca.kernels.base import torch_device
from longca_bench.measuring.bench import Bench
from longca_bench.measuring.case_end import CaseEndError, failure
from longca_bench.measuring.exhaustion import is_exhausted
from longca_bench.measuring.instruments import Instruments, Phases
from longca_bench.measuring.keeping import Keeper
from longca_bench.measuring.messages import Order, Phase, Result, Setup, to_json
from longca_bench.measuring.status import Status
from longca_bench.measuring.workers import Workers
from longca_bench.measuring.world import World

__all__ = ["SHARE", "serve"]

#: Share of a CUDA device's memory that the judge's own tensors may take. The rest is for the kernel and its results.
SHARE = 0.75


def serve(connection: Connection, keeper: Keeper) -> None:
    """Does orders until the connection is closed.

    If the CUDA context is lost or this process itself fails, it waits for its end. The next case gets another one.

    Args:
        connection: The runner's orders come here, and results go back.
        keeper: The keeper of the judge's workers.

    Raises:
        EOFError: The runner has closed the connection.
    """
    setup: Setup = connection.recv()
    phases = Phases(lambda name: connection.send_bytes(to_json(Phase(name))))
    if setup.place is not None:
        phases("joining")
    world = _world(setup)
    _bound(world.device)
    workers = Workers(keeper, world.device, setup.memory)
    instruments = Instruments(world, workers, phases)
    bench = Bench(setup.device, instruments, setup.with_backward, setup.wait_idle)
    phases("ready")
    while True:
        result = _measured(connection.recv(), bench, instruments)
        if result.is_judges or _poisoned():
            connection.send_bytes(to_json(replace(result, is_last=True)))
            connection.recv()  # the runner ends this process, which may be unable to end well
        torch.cuda.empty_cache()
        connection.send_bytes(to_json(result))


def _measured(order: Order, bench: Bench, instruments: Instruments) -> Result:
    """The result of a case. Faults of a plugin's code are results, and so is a lack of this process's own memory."""
    workers, phases = instruments.workers, instruments.announce
    workers.deadline = None if order.seconds is None else time.monotonic() + order.seconds
    try:
        return _with_all_memory(lambda: bench.measure(order.task), workers, alone=instruments.world.size == 1)
    except CaseEndError as end:
        if end.status is Status.TIMEOUT:
            message = f"still in phase {phases.last!r} after {order.seconds:g} s; it was ended"
        else:
            is_dead = end.status is Status.CRASHED and order.seconds is not None  # a leader names the phases of ranks
            message = f"{end} in phase {phases.last!r}" if is_dead else str(end)
        return Result(end.status, message, {})
    except Exception as error:  # this process's own memory may be out, or another rank may be gone
        text = f"{type(error).__name__}: {error}"
        exhausted = is_exhausted(error, text)
        if isinstance(error, LongCAError):  # this case cannot be measured, in whatever process
            return Result(failure(exhausted=exhausted), text, {})
        how = "has no memory left." if exhausted else "failed in this case and was replaced:"
        said = f"the judge, which holds inputs and references, {how} {text}"
        return Result(failure(exhausted=exhausted), said, {}, is_judges=True)


def _with_all_memory(measure: Callable[[], Result], workers: Workers, *, alone: bool) -> Result:
    """The result of a case, in which the judge or the kernel may need the memory that resting workers keep.

    Args:
        measure: Measures the case.
        workers: The workers. They are ended, and start again at need.
        alone: Whether this judge measures without others, and may measure twice.
    """
    try:
        return measure()
    except Exception as error:
        if isinstance(error, CaseEndError):
            lacks_memory = error.status is Status.OOM and workers.keep_memory
        else:
            lacks_memory = is_exhausted(error, str(error))
        if not (alone and lacks_memory):
            raise
    # The error is gone now, and with it the tensors of the frames that it came through.
    workers.end()
    gc.collect()
    torch.cuda.empty_cache()
    return measure()


def _bound(device: torch.device) -> None:
    """Bounds the memory that this process takes on a CUDA device, beside tensors that it shares with workers."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(SHARE)  # of the current device, which is this one


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

    return JobWorld(torch_device(setup.device), setup.place)
