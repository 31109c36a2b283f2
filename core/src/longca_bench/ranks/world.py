"""World: the process group of a job's ranks, seen from one of them."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # they are, and documented
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from longca.kernels.base import torch_device
from longca_bench.ranks.messages import RankSetup
from longca_bench.ranks.store import open_store

__all__ = ["World"]

_T = TypeVar("_T")

#: Longer than any case: it is the leader that ends what takes too long, and knows which rank did.
_TIMEOUT = timedelta(days=1)


class World:
    """The ranks that measure together; torch.distributed's default process group, gloo on CPUs and NCCL on GPUs.

    Args:
        setup: Which rank of which world this is, and where the store is in which they find each other.

    Attributes:
        rank: This rank.
        size: Ranks.
        device: What this rank computes on.
    """

    def __init__(self, setup: RankSetup) -> None:
        self.rank, self.size = setup.rank, setup.size
        self.device = torch_device(setup.setup.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(setup.local_rank)
        store = PrefixStore(f"world/{setup.world}", open_store(setup.host, setup.port))
        backend = "gloo" if self.device.type == "cpu" else "nccl"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=_TIMEOUT)
        # Words between ranks go over the host, so that they neither need nor wait for the device.
        self._control = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=_TIMEOUT)
        self._token = torch.zeros(1, device=self.device)
        self.mesh = lru_cache(maxsize=None)(self._mesh)

    def _mesh(self, axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
        """The ranks as a mesh of (axis, ranks) pairs; the same for all cases, as each has process groups of its own."""
        names, sizes = zip(*axes, strict=True)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=names)

    def everyone(self, value: _T) -> list[_T]:
        """Every rank's value, on every rank. It is also a barrier of the hosts."""
        values: list[_T | None] = [None] * self.size
        dist.all_gather_object(values, value, group=self._control)
        return values  # type: ignore[return-value]  # all of them are filled

    def line_up(self) -> None:
        """A barrier of the devices: what is launched after it begins when all ranks have come to it."""
        if self.device.type == "cuda":
            dist.all_reduce(self._token)  # on the stream: the host goes on and launches what is timed
        else:
            dist.barrier(group=self._control)

    def synchronize(self) -> None:
        """Waits until this rank's device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def all_to_all(self, sent: Tensor, sizes_out: list[int], sizes_in: list[int]) -> Tensor:
        """A flat tensor of what each rank gets of this one becomes a flat tensor of what this one gets of each."""
        received = sent.new_empty(sum(sizes_in))
        dist.all_to_all_single(received, sent, sizes_in, sizes_out)
        return received
