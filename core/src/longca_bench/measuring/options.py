"""Options of a run: the deadline of a case, limits, and the share of work among processes."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["DEADLINE", "OWN_VARIABLES", "Options", "let_threads_sleep"]

#: Seconds that a case may take, with compiling and verifying, unless `--timeout` gives another number.
DEADLINE = 600.0

#: Variables by which idle threads of OpenMP leave the cores to others. Workers of a GPU do not get them.
OWN_VARIABLES = ("OMP_WAIT_POLICY", "LONGCA_QUIET")


def let_threads_sleep() -> None:
    """Makes idle threads leave the cores to other processes. It must be called before torch is imported."""
    if OWN_VARIABLES[0] not in os.environ:
        os.environ.update(zip(OWN_VARIABLES, ("PASSIVE", "1"), strict=True))


@dataclass(frozen=True)
class Options:
    """Options of a run. Seconds are for each case, and `memory` is bytes of address space of a worker."""

    deadline: float = DEADLINE
    memory: int | None = None
    fail_fast: bool = False
    workers: int = 1
    interleave: bool = False
    wait_idle: float = 0.0
