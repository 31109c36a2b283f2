"""Jobs: this process's place among the processes that torchrun, or a launcher like it, has started."""

from __future__ import annotations

import os
from dataclasses import dataclass

from longca.errors import RequestError
from longca.processes import end_with_parent

__all__ = ["Job", "current_job"]


@dataclass(frozen=True)
class Job:
    """A place in a job.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        local_rank: The rank's number on this machine.
        host: Host of the store in which the job's processes find each other.
        port: Port of the store.
        opens_store: Whether this process opens the store. Rank 0 does, unless the launcher has.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    opens_store: bool

    def end_with_launcher(self) -> None:
        """Makes this process end with the process that started it."""
        end_with_parent()


def current_job() -> Job | None:
    """The place in a job by the environment, or None outside of a job.

    Raises:
        RequestError: Some of the environment's variables are missing.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise RequestError(
            f"RANK is set, but {', '.join(missing)} is not; start it with torchrun, which sets all of them"
        )
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    there = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return Job(rank, size, local_rank, os.environ["MASTER_ADDR"], port, opens_store=rank == 0 and not there)
