"""Launching: torchrun, started by the command line itself, on one machine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args
from torch.distributed.run import run as torchrun

from longca.errors import LongCAError

__all__ = ["launch"]


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Runs `torchrun --standalone --nproc-per-node RANKS -m longca ARGUMENTS` in this process.

    Cores are shared out among the ranks, unless OMP_NUM_THREADS says how many threads each has.

    Args:
        ranks: Processes to start.
        arguments: What comes behind `longca` on the command line; in the job --nproc means nothing.

    Returns:
        The exit code of rank 0.

    Raises:
        LongCAError: Another process of the job ended it.
        KeyboardInterrupt: It was interrupted.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    # Which rank failed and why is in the records; torchrun would say at length that a process has an exit code.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    options = ["--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0", "--module", "--", "longca"]
    try:
        torchrun(parse_args([*options, *arguments]))
    except SignalException as ended:
        if ended.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise LongCAError(f"the run was ended by {signal.Signals(ended.sigval).name}") from None
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if rank == 0 and failure.exitcode > 0:
            return int(failure.exitcode)
        how = f"exit code {failure.exitcode}" if failure.exitcode >= 0 else signal.Signals(-failure.exitcode).name
        raise LongCAError(
            f"the process that supervises rank {rank} ended with {how}; the records so far are kept"
        ) from None
    return 0
