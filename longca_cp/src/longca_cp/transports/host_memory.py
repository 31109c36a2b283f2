"""Host memory that the processes of one host share, and the messages of a group's ranks about it.

The memory has no name in any folder. A rank opens a peer's memory through the peer's process, and the kernel frees it
with the last process that maps it. So nothing is left behind, even if a rank is killed.
"""

from __future__ import annotations

import mmap
import os
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from longca.errors import LongCAError
from longca.kernels.ahead import check_not_ahead

__all__ = ["WindowMemoryError", "check_all_fit", "everyones", "everyones_memory"]

T = TypeVar("T")


class WindowMemoryError(LongCAError, torch.OutOfMemoryError):
    """A window does not fit into the memory of some rank. All ranks of the link get this error."""


def everyones(group: dist.ProcessGroup, value: T) -> list[T]:
    """The value of each rank of a group, in the order of ranks."""
    check_not_ahead("a window of ranks")
    values: list[T] = [value] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values


def check_all_fit(group: dist.ProcessGroup, nbytes: int, failed: str | None, because: str = "it does not fit") -> None:
    """Checks that no rank of a group has failed to get its memory of so many bytes.

    Raises:
        WindowMemoryError: Some rank has. All ranks raise it with the reasons.
    """
    ranks = dist.get_process_group_ranks(group)
    reasons = [f"rank {ranks[i]}: {said}" for i, said in enumerate(everyones(group, failed)) if said]
    if reasons:
        raise WindowMemoryError(
            f"each of {len(ranks)} ranks needs a window of {nbytes} bytes, and {because}. {'; '.join(reasons)}. "
            "Free memory, or call with transport='collectives'"
        )


def everyones_memory(group: dist.ProcessGroup, nbytes: int) -> list[Tensor]:
    """Memory of every rank of a group, mapped into this process: one tensor [nbytes] of bytes for each rank, all 0."""
    handle, failed = -1, None
    try:
        handle = os.memfd_create("longca")
        os.posix_fallocate(handle, 0, max(nbytes, 1))  # A write into memory that is not there would end the process.
    except OSError as error:
        failed = str(error)
    try:
        check_all_fit(group, nbytes, failed)
        places = everyones(group, (os.getpid(), handle))
        mapped, failed = _map_all(places, nbytes)
        check_all_fit(group, nbytes, failed)
    finally:
        if handle >= 0:
            os.close(handle)
    return mapped


def _map_all(places: list[tuple[int, int]], nbytes: int) -> tuple[list[Tensor], str | None]:
    """The memory of each process and handle, or the reason why one cannot be mapped."""
    try:
        return [_map(process, handle, nbytes) for process, handle in places], None
    except (OSError, ValueError) as error:
        return [], str(error)


def _map(process: int, handle: int, nbytes: int) -> Tensor:
    opened = os.open(f"/proc/{process}/fd/{handle}", os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(opened, max(nbytes, 1)), dtype=torch.uint8)[:nbytes]
    finally:
        os.close(opened)
