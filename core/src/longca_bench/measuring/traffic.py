"""Traffic: the collectives that a call makes, their sizes, and a way to begin them again without the call.

A strategy needs to do nothing for it, because the recorder watches the operators of torch.distributed. Calls within
`with Recorder() as recorder:` leave their collectives in `recorder.collectives`, and `sent_by_kind` adds them up.

Sizes are those of nccl-tests (doc/PERFORMANCE.md there). An all-gather counts the bytes that a rank ends up with. A
reduce-scatter and an all-to-all count the bytes that a rank gives. Other kinds count the bytes sent, reduced or
broadcast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longca.errors import LongCAError
from longca.parallel.pushes import Push

__all__ = ["Collective", "Recorder", "repeat", "sent_by_kind"]

# Newer releases of PyTorch call these by the names that come first here.
_all_gather: Callable[..., dist.Work] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., dist.Work] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

#: Returns scratch memory in the shape of a recorded tensor. The memory is allocated at the first call.
_Buffer = Callable[[], Tensor]
#: Makes a buffer from a role and a tensor. Roles differ, so that no collective reads its own output.
_Scratch = Callable[[str, Tensor], _Buffer]


class _Work(Protocol):
    """Work under way."""

    def wait(self) -> object:
        """Waits for it, or makes the current stream wait."""


#: Begins the collective once more.
_Start = Callable[[], Sequence[_Work]]


@dataclass
class Collective:
    """One collective, or one batch of sends and receives.

    Attributes:
        kind: `p2p`, `all_to_all`, `all_gather`, `reduce_scatter`, `all_reduce`, `broadcast` or `push`.
        group: The group of its ranks. None for a push.
        size: Its size in bytes, as nccl-tests count it.
        sent: The fewest bytes that leave this rank. The bus bandwidths of nccl-tests refer to them.
        start: Begins it once more, on other memory, which it allocates the first time.
    """

    kind: str
    group: dist.ProcessGroup | None
    size: int
    sent: int
    start: _Start = field(repr=False)


class Recorder(TorchDispatchMode):
    """While it is on, notes every collective of this thread.

    Attributes:
        collectives: The noted collectives, in their order.

    Raises:
        LongCAError: A collective of a kind that it cannot count was called while it was on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.collectives: list[Collective] = []
        self._batch: list[_Move] = []
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
                raise LongCAError(f"c10d::{name} was called, which cannot be counted; {', '.join(_READERS)} can")
        return func(*args, **(kwargs or {}))

    def add(self, pushes: Sequence[Push]) -> None:
        """Notes pushes, which no operator of torch.distributed makes. Each source is replaced by scratch memory."""
        for push in pushes:
            size, shape = push.source.nbytes, (push.source.shape, push.source.stride())
            key = "push", *shape, push.source.dtype, push.source.device
            made = partial(torch.empty_strided, *shape, dtype=push.source.dtype, device=push.source.device)

            def start(push: Push = push, key: tuple[Any, ...] = key, made: _Buffer = made) -> Sequence[_Work]:
                if key not in self._buffers:
                    self._buffers[key] = made().zero_()
                push.start(self._buffers[key])
                return [_Pushed(push)]

            self.collectives.append(Collective("push", None, size, size if push.leaves else 0, start))

    def _move(self, name: str, tensor: Tensor, group: dist.ProcessGroup, peer: int) -> None:
        """Notes a send or a receive. A send after a receive begins the next batch."""
        last = self.collectives[-1] if self.collectives else None
        follows = last is not None and last.kind == "p2p" and last.group is group
        if last is None or not follows or (name == "send" and any(move.name == "recv_" for move in self._batch)):
            self._batch = []
            last = Collective("p2p", group, 0, 0, partial(_exchange, group, self._batch))
            self.collectives.append(last)
        self._batch.append(_Move(name, self._scratch(name, tensor), peer))
        if name == "send":
            last.size += tensor.nbytes
            last.sent += tensor.nbytes

    def _scratch(self, role: str, tensor: Tensor) -> _Buffer:
        key = role, tensor.shape, tensor.dtype, tensor.device

        def buffer() -> Tensor:
            if key not in self._buffers:
                _, shape, dtype, device = key
                self._buffers[key] = torch.zeros(shape, dtype=dtype, device=device)
            return self._buffers[key]

        return buffer


class _Pushed(NamedTuple):
    """A push under way."""

    push: Push

    def wait(self) -> None:
        """Makes the current stream wait for it, or on CPUs the host."""
        self.push.join()


class _Move(NamedTuple):
    """A send or a receive of a batch, with its operator's name."""

    name: str
    buffer: _Buffer
    peer: int


def _exchange(group: dist.ProcessGroup, batch: Sequence[_Move]) -> Sequence[dist.Work]:
    methods = {"send": dist.isend, "recv_": dist.irecv}
    moves = [dist.P2POp(methods[move.name], move.buffer(), group=group, group_peer=move.peer) for move in batch]
    return dist.batch_isend_irecv(moves)


def _is_group(value: object) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


def _all_to_all(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    output, given, _, rows_in, rows_out, *_ = args
    rows = list(rows_out) or [len(given) // group.size()] * group.size()
    row_bytes = given.nbytes // max(1, len(given))
    to, of = scratch("output", output), scratch("input", given)

    def start() -> Sequence[dist.Work]:
        splits = list(rows_in) or None, list(rows_out) or None
        return [dist.all_to_all_single(to(), of(), *splits, group=group, async_op=True)]

    return Collective("all_to_all", group, given.nbytes, row_bytes * (sum(rows) - rows[group.rank()]), start)


def _gather(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    to, of = scratch("output", args[0]), scratch("input", args[1])
    start = lambda: [_all_gather(to(), of(), group=group, async_op=True)]  # noqa: E731
    return Collective("all_gather", group, args[0].nbytes, args[1].nbytes * (group.size() - 1), start)


def _scatter(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    to, of = scratch("output", args[0]), scratch("input", args[1])
    start = lambda: [_reduce_scatter(to(), of(), group=group, async_op=True)]  # noqa: E731
    return Collective("reduce_scatter", group, args[1].nbytes, args[0].nbytes * (group.size() - 1), start)


def _reduce(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    (tensor,) = args[0]
    on = scratch("output", tensor)
    sent = 2 * tensor.nbytes * (group.size() - 1) // group.size()
    return Collective(
        "all_reduce", group, tensor.nbytes, sent, lambda: [dist.all_reduce(on(), group=group, async_op=True)]
    )


def _broadcast(group: dist.ProcessGroup, args: Any, scratch: _Scratch) -> Collective:
    (tensor,) = args[0]
    on, root = scratch("output", tensor), args[2]
    start = lambda: [dist.broadcast(on(), group=group, group_src=root, async_op=True)]  # noqa: E731
    return Collective("broadcast", group, tensor.nbytes, tensor.nbytes, start)


#: The reader of each operator of torch.distributed.
_READERS: dict[str, Callable[[dist.ProcessGroup, Any, _Scratch], Collective]] = {
    "alltoall_base_": _all_to_all,
    "_allgather_base_": _gather,
    "_reduce_scatter_base_": _scatter,
    "allreduce_": _reduce,
    "broadcast_": _broadcast,
}


def repeat(collectives: Sequence[Collective]) -> None:
    """Starts collectives again in their order, and then waits for all of them, as late as any computation needs."""
    for work in [*chain.from_iterable(collective.start() for collective in collectives)]:
        work.wait()


def sent_by_kind(collectives: Sequence[Collective]) -> Counter[str]:
    """Bytes that leave this rank, by kind."""
    sent: Counter[str] = Counter()
    for collective in collectives:
        sent[collective.kind] += collective.sent
    return sent
