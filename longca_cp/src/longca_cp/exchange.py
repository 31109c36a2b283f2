"""Exchange: the axes of a mesh, the collectives along them, and the order of the rows that arrive.

An axis may have a link as well, by which ranks write into each other's memory: `longca_cp.transports`.

Whoever needs a transfer starts it here and waits for it later. With NCCL, a transfer runs on a stream of its own, after
everything that the current stream was given so far. `wait` makes the current stream wait, and the host goes on. With
gloo, `wait` blocks the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.manifests import Transport
from longca.parallel.meshes import mesh_dims, rank_in
from longca_cp.transports.link import Link
from longca_cp.transports.links import links_of

__all__ = ["Arrival", "Axis", "Order", "Transfer", "all_gather", "all_to_all", "axes_of", "reduce_scatter", "shift"]

Arrived = TypeVar("Arrived")

# Newer releases of PyTorch use the first name of each line.
_all_gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh, seen from this process."""

    group: dist.ProcessGroup
    size: int
    index: int  # this process's place
    link: Link | None = None  # None if collectives move tensors

    @property
    def transport(self) -> Transport:
        """The transport that moves tensors along it."""
        return Transport.COLLECTIVES if self.link is None else Transport.COPY_ENGINE

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL moves tensors of GPUs. A group without a named backend has one for each kind of device."""
        return "cuda:nccl" in dist.get_backend_config(self.group)

    def peer(self, offset: int) -> int:
        """The global rank of the process `offset` places further along the axis, as on a ring."""
        return dist.get_global_rank(self.group, (self.index + offset) % self.size)

    def source(self, step: int) -> int:
        """The rank whose data this process has at a step, if each step passes all data on to the next rank."""
        return (self.index - step) % self.size


def axes_of(
    mesh: DeviceMesh, names: Sequence[str], transport: Transport = Transport.AUTO
) -> tuple[int, tuple[Axis, ...]]:
    """This process's rank in layouts over these axes, and each of the axes. All ranks of the mesh call it together."""
    rank, dims = rank_in(mesh, names), mesh_dims(mesh, names)
    kind = mesh.device_type
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    groups = {name: mesh.get_group(dim) for name, dim in zip(names, dims, strict=True)}
    links = links_of(groups, device, transport)
    return rank, tuple(Axis(group, group.size(), group.rank(), links[name]) for name, group in groups.items())


@dataclass
class Transfer:
    """A transfer under way. Until `wait`, its inputs must not change, and its outputs are undefined."""

    works: Sequence[dist.Work] = ()
    tensors: tuple[Tensor, ...] = ()  # which it reads and writes: held, so that their memory is not reused

    def wait(self) -> None:
        """Waits for its end."""
        for work in self.works:
            work.wait()
        self.works, self.tensors = (), ()


@dataclass
class Arrival(Generic[Arrived]):
    """Something on its way, made of what a transfer brings."""

    unpack: Callable[[], Arrived]
    transfer: Transfer = field(default_factory=Transfer)

    def wait(self) -> Arrived:
        """Waits for it."""
        self.transfer.wait()
        return self.unpack()


def shift(axis: Axis, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> Transfer:
    """Sends contiguous tensors to the next rank of a ring, and receives tensors of the same sizes from the rank before.

    All sends and receives are one batch. So neither rank waits for the other, and NCCL launches one kernel.
    """
    after, before = axis.peer(1), axis.peer(-1)
    batch = [dist.P2POp(dist.isend, tensor, after, axis.group) for tensor in sends]
    batch += [dist.P2POp(dist.irecv, tensor, before, axis.group) for tensor in receives]
    return Transfer(dist.batch_isend_irecv(batch) if batch else (), (*sends, *receives))


def all_to_all(axis: Axis, received: Tensor, sent: Tensor, rows_in: Sequence[int], rows_out: Sequence[int]) -> Transfer:
    """Sends some rows of a contiguous tensor to each rank, and receives some from each, in the order of ranks."""
    work = dist.all_to_all_single(received, sent, list(rows_in), list(rows_out), group=axis.group, async_op=True)
    return Transfer((work,), (received, sent))


def all_gather(axis: Axis, gathered: Tensor, mine: Tensor) -> Transfer:
    """Fills [size · rows, ...] with every rank's [rows, ...], in the order of ranks."""
    return Transfer((_all_gather(gathered, mine, group=axis.group, async_op=True),), (gathered, mine))


def reduce_scatter(axis: Axis, mine: Tensor, everyones: Tensor) -> Transfer:
    """Fills [rows, ...] with the sum of all ranks' [size · rows, ...] in this rank's rows."""
    return Transfer((_reduce_scatter(mine, everyones, group=axis.group, async_op=True),), (mine, everyones))


class Order:
    """The order of arriving rows, which come rank by rank, and the ascending order of their tokens.

    Kernels get tokens in ascending global order. In other orders, the cut of a causal mask would have many intervals. A
    row without a token arrives with the position −1. One row holds each of the wanted positions, which ascend.
    """

    def __init__(self, arriving: NDArray[np.int64], wanted: NDArray[np.int64], device: torch.device) -> None:
        by_position = np.argsort(arriving, kind="stable")
        rows = by_position[np.searchsorted(arriving, wanted, sorter=by_position)]
        assert np.array_equal(arriving[rows], wanted), "every token wanted arrives"
        self._arriving, self._whole = len(arriving), len(wanted) == len(arriving)
        is_in_order = self._whole and np.array_equal(rows, np.arange(len(rows)))
        self._rows = None if is_in_order else torch.from_numpy(rows).to(device)

    def ascending(self, rows: Tensor) -> Tensor:
        """The wanted tokens, [wanted, ...], of arriving rows, [arriving, ...]. It copies only if the order differs."""
        return rows if self._rows is None else rows.index_select(0, self._rows)

    def arriving(self, tokens: Tensor) -> Tensor:
        """The opposite way: contiguous rows [arriving, ...] of tokens [wanted, ...]. Other rows are 0."""
        if self._rows is None:
            return tokens.contiguous()
        shape = (self._arriving, *tokens.shape[1:])
        rows = tokens.new_empty(shape) if self._whole else tokens.new_zeros(shape)
        return rows.index_copy_(0, self._rows, tokens)
