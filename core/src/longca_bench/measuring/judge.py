"""The judge: the process that `longca_bench.measuring.pool` starts for a device or a rank, in a session of its own.

It is called as `python -P -m longca_bench.measuring.judge FD NAMES FOLDER`, and talks over the file descriptor FD:
first it gets its `Setup`, then one `Order` at a time. For each it sends the phases that it begins, and then the result.
NAMES are variables of the environment that are the judge's alone. Workers have their folders in FOLDER.
"""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection

from longca.processes import end_with_parent
from longca_bench.measuring.keeping import Keeper, workers_environment

__all__: list[str] = []


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it handles Ctrl-C
    end_with_parent()
    keeper = Keeper(workers_environment(sys.argv[2].split(",")), sys.argv[3])
    try:
        from longca_bench.measuring.judging import serve  # the keeper imports PyTorch at the same time

        serve(Connection(int(sys.argv[1])), keeper)
    except EOFError:
        return
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
