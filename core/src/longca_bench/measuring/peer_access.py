"""Peer access: which GPUs of this machine write into each other's memory, how fast, and whether symmetric memory works.

    python -m longca_bench.measuring.peer_access

The process measures up to eight GPUs, and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypedDict, cast

from longca_bench.measuring.module_output import last_json_line

__all__ = ["PeerAccess", "bandwidths", "measure_peer_access"]

#: Seconds in which the measurement ends, with importing torch in three processes.
_DEADLINE = 120.0
#: Bytes of a copy, copies of a pair, and the GPUs that are measured at most: 56 pairs of eight GPUs take 2 s or less.
_BYTES, _COPIES, _MOST_GPUS = 2**28, 5, 8


class PeerAccess(TypedDict):
    """The GPUs of a machine, and the copies between them: access and 10⁹ bytes a second are [GPUs][GPUs].

    A bandwidth is None without access and on the diagonal. `symmetric` says why two processes cannot share symmetric
    memory, and is empty if they can.
    """

    reaches: list[list[bool]]
    bandwidths: list[list[float | None]]
    symmetric: str


def measure_peer_access(module: str = __name__) -> PeerAccess:
    """Measures copies between the GPUs of this machine, in a process. A failure is a LongCAError."""
    found = last_json_line(module, what="the measurement of copies between GPUs", seconds=_DEADLINE)
    return cast(PeerAccess, found)


def bandwidths(
    reaches: list[list[bool]], seconds: Callable[[int, int], float], size: int = _BYTES
) -> list[list[float | None]]:
    """10⁹ bytes a second from each GPU to each other one that it reaches. `seconds` copies `size` bytes."""
    pairs = range(len(reaches))
    return [[size / seconds(i, j) / 1e9 if i != j and reaches[i][j] else None for j in pairs] for i in pairs]


def _measure() -> PeerAccess:
    import torch

    gpus = range(min(torch.cuda.device_count(), _MOST_GPUS))
    reaches = [[i == j or torch.cuda.can_device_access_peer(i, j) for j in gpus] for i in gpus]
    return {"reaches": reaches, "bandwidths": bandwidths(reaches, _seconds), "symmetric": _symmetric(reaches)}


def _seconds(source: int, into: int) -> float:
    """The median time of a copy. PyTorch copies between GPUs with peer access by a copy engine."""
    import torch

    mine = torch.empty(_BYTES, dtype=torch.uint8, device=f"cuda:{source}")
    theirs = torch.empty(_BYTES, dtype=torch.uint8, device=f"cuda:{into}")
    times = []
    with torch.cuda.device(source):
        for _ in range(_COPIES + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            theirs.copy_(mine, non_blocking=True)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
    return median(times[1:])


def _symmetric(reaches: list[list[bool]]) -> str:
    """The reason why two processes on two GPUs cannot share symmetric memory, or an empty text."""
    from torch.multiprocessing.spawn import spawn

    pair = next(((i, j) for i, row in enumerate(reaches) for j, is_near in enumerate(row) if is_near and i != j), None)
    if pair is None:
        return "no GPU has access to the memory of another one"
    os.environ |= {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(_trial, (pair, folder), nprocs=2)
        except Exception as error:  # whatever a driver or a library says is the reason
            return str(error).strip().splitlines()[-1][:300]
        said = [(Path(folder) / f"said{rank}").read_text("utf-8") for rank in range(2)]
    return next(filter(None, said), "")


def _trial(rank: int, pair: tuple[int, int], folder: str) -> None:
    """Writes the rank's number into the other rank's memory, and notes whether the other's number arrived here."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore
    from torch.distributed import _symmetric_memory as symmetric
    from torch.distributed import distributed_c10d as c10d

    torch.cuda.set_device(pair[rank])
    dist.init_process_group("gloo", store=FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    memory = symmetric.empty(64, dtype=torch.int32, device=torch.device("cuda", pair[rank]))
    handle = symmetric.rendezvous(memory, c10d._get_default_group())
    handle.get_buffer(1 - rank, (64,), torch.int32).fill_(1 + rank)
    torch.cuda.synchronize()
    dist.barrier()
    fault = "" if bool((memory == 2 - rank).all()) else "other bytes arrived than were sent"
    (Path(folder) / f"said{rank}").write_text(fault, "utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure()) + "\n")
