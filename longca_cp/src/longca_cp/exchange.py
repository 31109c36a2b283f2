"""Exchange: the collectives that strategies are made of. Each is started here and waited for by whoever needs it.

With NCCL they run on a stream of their own behind what the current stream has been given so far, and `wait` makes the
current stream wait for them; the host goes on. With gloo, `wait` blocks the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from longca_cp.mesh import Axis

__all__ = ["Transfer", "all_gather", "all_to_all", "reduce_scatter", "shift"]

# Newer releases of PyTorch call these by the names that come first here.
_all_gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass
class Transfer:
    """A transfer under way. Until it was waited for, what it reads must not change, and what it writes is undefined.

    Attributes:
        works: What torch.distributed calls it.
        tensors: The tensors it reads and writes, held so that their memory is not given to others.
    """

    works: Sequence[dist.Work] = ()
    tensors: tuple[Tensor, ...] = ()

    def wait(self) -> None:
        """Waits until it is done."""
        for work in self.works:
            work.wait()
        self.works, self.tensors = (), ()


def shift(axis: Axis, sends: Sequence[Tensor], receives: Sequence[Tensor]) -> Transfer:
    """Sends contiguous tensors to the next rank of a ring, and receives as many of the same sizes from the one before.

    It is one batch, so that neither rank waits for the other, and NCCL launches one kernel.
    """
    after, before = axis.peer(1), axis.peer(-1)
    batch = [dist.P2POp(dist.isend, tensor, after, axis.group) for tensor in sends]
    batch += [dist.P2POp(dist.irecv, tensor, before, axis.group) for tensor in receives]
    return Transfer(dist.batch_isend_irecv(batch) if batch else (), (*sends, *receives))


def all_to_all(axis: Axis, received: Tensor, sent: Tensor, rows_in: Sequence[int], rows_out: Sequence[int]) -> Transfer:
    """Sends some rows of a contiguous tensor to each rank, and receives some from each.

    Args:
        axis: Between whose ranks.
        received: Filled with the rows from each rank, in the order of ranks.
        sent: The rows for each rank, in the order of ranks.
        rows_in: How many rows come from each rank.
        rows_out: How many rows go to each.
    """
    work = dist.all_to_all_single(received, sent, list(rows_in), list(rows_out), group=axis.group, async_op=True)
    return Transfer((work,), (received, sent))


def all_gather(axis: Axis, gathered: Tensor, mine: Tensor) -> Transfer:
    """Fills [size · rows, ...] with every rank's [rows, ...], in the order of ranks."""
    return Transfer((_all_gather(gathered, mine, group=axis.group, async_op=True),), (gathered, mine))


def reduce_scatter(axis: Axis, mine: Tensor, everyones: Tensor) -> Transfer:
    """Fills [rows, ...] with the sum of all ranks' [size · rows, ...] in this rank's rows."""
    return Transfer((_reduce_scatter(mine, everyones, group=axis.group, async_op=True),), (mine, everyones))
