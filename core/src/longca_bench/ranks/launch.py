"""Launching: the command line itself starts a process for each rank, on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from longca.errors import LongCAError
from longca.processes import how_it_ended
from longca_bench.ranks.board import serve_store
from longca_bench.ranks.job import LOOPBACK

__all__ = ["launch"]

_PAUSE = 0.05
#: Seconds that the other processes may take to end after one of them failed, or after a signal.
_END = 30.0


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Runs `python -P -m longca ARGUMENTS` in a process for each rank, with the variables that `torchrun` sets.

    The ranks share the cores equally, unless OMP_NUM_THREADS gives the threads of each. Their store listens on the
    loopback address, which `torchrun` cannot do.

    Args:
        ranks: Number of processes.
        arguments: The arguments after `longca` on the command line. In the job --nproc means nothing.

    Returns:
        The exit code of rank 0.

    Raises:
        LongCAError: Another process ended the job.
        KeyboardInterrupt: The job was interrupted.
    """
    store = serve_store(LOOPBACK)
    environment = {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks)),
        **os.environ,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _raise)
    processes: list[subprocess.Popen[bytes]] = []
    told = signal.SIGTERM
    try:
        for rank in range(ranks):
            command = [sys.executable, "-P", "-u", "-m", "longca", *arguments]
            own = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=own, start_new_session=True))
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(_PAUSE)
    except KeyboardInterrupt:
        told = signal.SIGINT
        raise
    finally:
        _end(processes, told)
    failed = [(rank, code) for rank, code in enumerate(codes) if code]
    if not failed:
        return 0
    rank, code = failed[0]
    if rank == 0 and code > 0:
        return code
    raise LongCAError(f"the process that supervises rank {rank} {how_it_ended(code)}; the records so far are kept")


def _end(processes: Sequence[subprocess.Popen[bytes]], told: signal.Signals) -> None:
    """Ends processes by a signal, and after a while at once."""
    for process in processes:
        process.send_signal(told)
    deadline = time.monotonic() + _END
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()


def _raise(number: int, _: FrameType | None) -> None:
    raise LongCAError(f"the run was ended by {signal.Signals(number).name}")
