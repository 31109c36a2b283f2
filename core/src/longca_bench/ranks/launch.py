"""Launching: the command line itself starts torchrun, on one machine."""

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
from longca.import_path import safe_python

__all__ = ["launch"]


def launch(ranks: int, arguments: Sequence[str]) -> int:
    """Runs `torchrun --standalone --nproc-per-node RANKS --no-python python -P -m longca ARGUMENTS` in this process.

    The ranks share the cores equally, unless OMP_NUM_THREADS gives the threads of each.

    Args:
        ranks: Number of processes.
        arguments: The arguments after `longca` on the command line. In the job --nproc means nothing.

    Returns:
        The exit code of rank 0.

    Raises:
        LongCAError: Another process ended the job.
        KeyboardInterrupt: The job was interrupted.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    # The records name the rank that failed, and the reason. torchrun would only report an exit code, at length.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    options = ["--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0", "--no-python", "--"]
    try:
        torchrun(parse_args([*options, *safe_python("-u", "-m", "longca", *arguments)]))
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
