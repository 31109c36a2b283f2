"""The judge: the process that `longca_bench.measuring.pool` starts for a device or a rank, in a session of its own.

It is called as `python -P -m longca_bench.measuring.judge FD NAMES FOLDER`, and talks over the file descriptor FD:
first it gets its `Setup`, then one `Order` at a time. For each it sends the phases that it begins, and then the result.
NAMES are variables of the environment that are the judge's alone. Workers have their folders in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

from longca.processes import end_with_parent
from longca_bench.measuring.keeping import Keeper

__all__: list[str] = []

#: Variables that name folders of the user's. A run may be below them, and workers are told of no run.
_FOLDERS = ("PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD", "SGE_O_WORKDIR", "LONGCA_HISTORY")


def main() -> None:
    """Serves the connection that the command line names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it handles Ctrl-C
    end_with_parent()
    own = {*sys.argv[2].split(","), *_FOLDERS}
    keeper = Keeper({name: value for name, value in os.environ.items() if name not in own}, sys.argv[3])
    try:
        from longca_bench.measuring.judging import serve  # the keeper imports PyTorch at the same time

        serve(Connection(int(sys.argv[1])), keeper)
    except EOFError:
        return
    finally:
        keeper.close()


if __name__ == "__main__":
    main()
