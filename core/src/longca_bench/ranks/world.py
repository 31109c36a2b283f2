"""The world of a job: the process group of its ranks, seen from one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # it is there, and documented
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from longca_bench.measuring.messages import Place, from_json, to_json
from longca_bench.measuring.world import World
from longca_bench.ranks.board import open_store

__all__ = ["LOOK", "JobWorld"]

_T = TypeVar("_T")

#: Longer than any case. The leader ends a case that takes too long, and knows the rank that did.
_TIMEOUT = timedelta(days=1)
#: Seconds between two questions whether a device has finished, and between two looks at its progress.
_POLL = 2e-5
LOOK = 0.5


class JobWorld(World):
    """The default process group of torch.distributed: gloo on CPUs and NCCL on GPUs.

    The ranks of a job are one group (`workers` is None). Their workers are another one, which has a new number when
    workers are replaced: `groups` counts them. `look` looks at the device's progress while the host waits for a call.
    """

    batch = 8

    def __init__(self, device: torch.device, place: Place, workers: int | None = None) -> None:
        super().__init__(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(place.local_rank)
            self.device = torch.device("cuda", place.local_rank)
        self.place, self.groups = place, 0
        self.look: Callable[[], None] | None = None
        name = f"world/{place.world}" if workers is None else f"world/{place.world}/workers/{workers}"
        store = PrefixStore(name, open_store(place.host, place.port))
        backend = "gloo" if self.device.type == "cpu" else "nccl"
        dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=_TIMEOUT)
        self._join(timeout=_TIMEOUT)

    def _join(self, timeout: timedelta) -> None:
        """Takes the default process group, and makes the means to talk."""
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Ranks talk over the host, so that their words neither need nor wait for the device.
        over_host = dist.get_backend() == "gloo"
        self._control = dist.group.WORLD if over_host else dist.new_group(backend="gloo", timeout=timeout)
        self._token, self._has_met = torch.zeros(1, device=self.device), False
        self.mesh = lru_cache(maxsize=None)(self._mesh)

    def _mesh(self, axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
        """The ranks as a mesh of (axis, ranks) pairs. All cases share it, because a mesh has process groups."""
        names, sizes = zip(*axes, strict=True)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=names)

    def meet(self) -> None:
        """Exchanges a few bytes, once. NCCL takes the buffers of exchanges at the first one."""
        if not self._has_met:
            self.all_to_all(torch.zeros(self.size, device=self.device), [1] * self.size, [1] * self.size)
            self._has_met = True

    def everyone(self, value: _T, kind: Any = Any) -> list[_T]:
        """Every rank's value, on every rank, by way of JSON."""
        mine = torch.frombuffer(bytearray(to_json(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), group=self._control)
        parts = [mine.new_empty(int(max(sizes))) for _ in sizes]
        dist.all_gather(parts, torch.cat([mine, mine.new_zeros(len(parts[0]) - len(mine))]), group=self._control)
        return [from_json(bytes(part[:size].numpy()), kind) for part, size in zip(parts, sizes, strict=True)]

    def line_up(self) -> None:
        """A barrier of the devices."""
        if self.device.type == "cuda":
            dist.all_reduce(self._token)  # on the stream: the host goes on and launches the timed call
        else:
            dist.barrier(group=self._control)

    def wait(self, event: torch.cuda.Event) -> None:
        """Waits for an event of the device, and looks at the device's progress now and then."""
        last = time.monotonic()
        while not event.query():
            time.sleep(_POLL)
            if self.look is not None and time.monotonic() > last + LOOK:
                self.look()
                last = time.monotonic()

    def all_to_all(self, sent: Tensor, sizes_out: list[int], sizes_in: list[int]) -> Tensor:
        """Exchanges parts of flat tensors among ranks."""
        received = sent.new_empty(sum(sizes_in))
        dist.all_to_all_single(received, sent, sizes_in, sizes_out)
        return received
