"""Jobs: the ranks that this process starts, or its place among the processes that torchrun has started."""

from __future__ import annotations

import os
from dataclasses import dataclass

from longca.errors import RequestError
from longca.processes import end_with_parent

__all__ = ["LOOPBACK", "Job", "current_job", "local_job"]

#: The address of a job on one host. Other hosts cannot reach it.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Job:
    """A place in a job, whose processes find each other in a store.

    Rank 0 opens the store, unless the launcher has. With `starts_all` this process starts all ranks, and else torchrun
    starts one for each.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    opens_store: bool
    on_one_host: bool = False
    starts_all: bool = False

    def enter(self) -> None:
        """Makes a process of torchrun end with it. On one host, sockets listen on the loopback address by default."""
        if not self.starts_all:
            end_with_parent()
        if self.on_one_host:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

    def variables(self, rank: int) -> dict[str, str]:
        """The variables of the process of a rank, as torchrun sets them."""
        if not self.starts_all:
            return {}
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.size}
        return {name: str(each) for name, each in {**numbers, "MASTER_PORT": self.port}.items()} | {
            "MASTER_ADDR": self.host,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self.threads)),
        }

    @property
    def threads(self) -> int:
        """The threads of a rank on a CPU, unless the user gives them: ranks share the cores equally."""
        return max(1, len(os.sched_getaffinity(0)) // self.size)


def local_job(ranks: int) -> Job:
    """A job whose ranks this process starts, all of them on this machine."""
    return Job(0, ranks, 0, LOOPBACK, 0, opens_store=True, on_one_host=True, starts_all=True)


def current_job() -> Job | None:
    """The place in a job by the environment, or None outside of a job. Missing variables are a RequestError."""
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
    local_rank, host = int(os.environ.get("LOCAL_RANK", rank)), os.environ["MASTER_ADDR"]
    alone = os.environ.get("LOCAL_WORLD_SIZE") == str(size) or host in (LOOPBACK, "localhost", "::1")
    return Job(rank, size, local_rank, LOOPBACK if alone and not there else host, port, rank == 0 and not there, alone)
