"""Collectives: which ones a call makes, of what sizes, whoever makes them; and the same ones again, without the call.

They are seen where torch.distributed hands them to its backends, at its operators, so that a strategy needs to do
nothing for it. Sizes are those of nccl-tests (doc/PERFORMANCE.md there): of an all-gather what a rank gets in the end,
of a reduce-scatter and an all-to-all what it gives, of any other what is sent, reduced or broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longca.errors import LongCAError

__all__ = ["Collective", "Recorder", "repeat", "sent_by_kind"]

# Newer releases of PyTorch call these by the names that come first here.
_all_gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

#: Makes a tensor like one that was seen, of memory that nobody reads: by its role, so that no collective reads what it
#: writes.
_Scratch = Callable[[str, Tensor], Tensor]
#: Begins the collective once more.
_Start = Callable[[], Sequence[dist.Work]]


@dataclass
class Collective:
    """One collective, or one batch of sends and receives.

    Attributes:
        kind: `p2p`, `all_to_all`, `all_gather`, `reduce_scatter`, `all_reduce` or `broadcast`.
        group: Between whose ranks.
        size: Its size in bytes, as nccl-tests count it.
        sent: Bytes that leave this rank, at the least: what nccl-tests make a bus bandwidth of.
        start: Begins it once more, on other memory.
        moves: Of a batch, its sends and receives.
    """

    kind: str
    group: dist.ProcessGroup
    size: int
    sent: int
    start: _Start = field(repr=False)
    moves: list[dist.P2POp] = field(default_factory=list, repr=False)


class Recorder(TorchDispatchMode):
    """While it is on, notes every collective of this thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.collectives: list[Collective] = []
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Notes a collective, and lets it happen."""
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            groups = [dist.ProcessGroup.unbox(x) for x in args[1:] if _is_group(x)]
            if name in ("send", "recv_"):
                self._move(name, args[0][0], groups[0], args[2])
            elif name in _READERS:
                self.collectives.append(_READERS[name](groups[0], args, self._scratch))
            elif name != "barrier":
                raise LongCAError(
                    f"the strategy called c10d::{name}, which cannot be counted; {', '.join(_READERS)} can"
                )
        return func(*args, **(kwargs or {}))

    def _move(self, name: str, tensor: Tensor, group: dist.ProcessGroup, peer: int) -> None:
        """Notes a send or a receive. A batch sends first: the next send begins another one."""
        last = self.collectives[-1] if self.collectives else None
        begins = last is None or last.kind != "p2p" or last.group is not group
        if begins or (name == "send" and any(move.op is dist.irecv for move in last.moves)):  # type: ignore[union-attr]
            moves: list[dist.P2POp] = []
            last = Collective("p2p", group, 0, 0, lambda: dist.batch_isend_irecv(moves), moves)
            self.collectives.append(last)
        assert last is not None
        method = dist.isend if name == "send" else dist.irecv
        last.moves.append(dist.P2POp(method, self._scratch(name, tensor), group=group, group_peer=peer))
        if name == "send":
            last.size += tensor.nbytes
            last.sent += tensor.nbytes

    def _scratch(self, role: str, tensor: Tensor) -> Tensor:
        key = role, tensor.shape, tensor.dtype
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self._buffers[key]


def _is_group(value: object) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


def _all_to_all(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    output, given, _, rows_in, rows_out, *_ = args
    rows = list(rows_out) or [len(given) // group.size()] * group.size()
    row_bytes = given.nbytes // max(1, len(given))
    to, of = scratch("output", output), scratch("input", given)

    def start() -> Sequence[dist.Work]:
        splits = list(rows_in) or None, list(rows_out) or None
        return [dist.all_to_all_single(to, of, *splits, group=group, async_op=True)]

    return Collective("all_to_all", group, given.nbytes, row_bytes * (sum(rows) - rows[group.rank()]), start)


def _gather(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    to, of = scratch("output", args[0]), scratch("input", args[1])
    start = lambda: [_all_gather(to, of, group=group, async_op=True)]  # noqa: E731
    return Collective("all_gather", group, args[0].nbytes, args[1].nbytes * (group.size() - 1), start)


def _scatter(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    to, of = scratch("output", args[0]), scratch("input", args[1])
    start = lambda: [_reduce_scatter(to, of, group=group, async_op=True)]  # noqa: E731
    return Collective("reduce_scatter", group, args[1].nbytes, args[0].nbytes * (group.size() - 1), start)


def _reduce(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    (tensor,) = args[0]
    on = scratch("output", tensor)
    sent = 2 * tensor.nbytes * (group.size() - 1) // group.size()
    return Collective(
        "all_reduce", group, tensor.nbytes, sent, lambda: [dist.all_reduce(on, group=group, async_op=True)]
    )


def _broadcast(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    (tensor,) = args[0]
    on, root = scratch("output", tensor), args[2]
    start = lambda: [dist.broadcast(on, group=group, group_src=root, async_op=True)]  # noqa: E731
    return Collective("broadcast", group, tensor.nbytes, tensor.nbytes, start)


#: Of each of torch.distributed's operators, what it does.
_READERS: dict[str, Callable[[dist.ProcessGroup, Any, _Scratch], Collective]] = {
    "alltoall_base_": _all_to_all,
    "_allgather_base_": _gather,
    "_reduce_scatter_base_": _scatter,
    "allreduce_": _reduce,
    "broadcast_": _broadcast,
}


def repeat(collectives: Sequence[Collective]) -> None:
    """Begins collectives once more, in their order, and waits for all: no sooner than anything computed needs it."""
    for work in list(_started(collectives)):
        work.wait()


def _started(collectives: Sequence[Collective]) -> Iterator[dist.Work]:
    for collective in collectives:
        yield from collective.start()


def sent_by_kind(collectives: Sequence[Collective]) -> Counter[str]:
    """Bytes that leave this rank, by kind."""
    sent: Counter[str] = Counter()
    for collective in collectives:
        sent[collective.kind] += collective.sent
    return sent
