"""Pushed rings: a rank pushes its keys and values straight to each rank that computes with them.

In turn t rank i has the keys of rank (i − t) mod n, as in a ring whose ranks pass them on. Here the owner pushes them
to each reader while that reader computes the turn before. The source is the owner's own k and v, as they lie in memory.
Turn 0 reads them without a copy, and a turn that is empty for a rank moves nothing to it.

Gradients go the other way: rank i pushes its part of a turn straight to the owner of the keys, in the kernel's dtype.
A travelling sum would move float32, twice as many bytes for bfloat16, and each hop would wait for the one before. The
owner adds the parts up in float32 (float64 for float64): its own part first, then the part of each turn in order.
A travelling sum has the same order, so both give equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca_cp.exchange import Axis
from longca_cp.heads import split_kv
from longca_cp.inbox import Inbox

__all__ = ["PushedGradients", "PushedKeys", "Turns"]


class Turns:
    """The pushes of one time round: in turn t rank i pushes to rank i + t · way.

    A push arrives in the turns `arriving`, from the ranks `sources`, and at any member `most` times at most. `arrives`
    says whether a push arrives at each member in each turn: [members, turns]. Turn 0 has none. The way of keys is 1,
    and that of gradients −1.
    """

    def __init__(self, axis: Axis, arrives: NDArray[np.bool_], way: int) -> None:
        self._axis, self._way = axis, way
        before = arrives.cumsum(axis=1) - arrives
        uses: NDArray[np.int64] = np.where(arrives, before, -1)
        self._mine: list[int] = uses[axis.index].tolist()
        self._goes = [int(uses[self.reader(turn), turn]) for turn in range(arrives.shape[1])]
        self.arriving = np.flatnonzero(arrives[axis.index]).tolist()
        self.most = int(arrives.sum(axis=1).max())
        self.sources = [((axis.index - way * turn) % axis.size,) for turn in self.arriving]

    @classmethod
    def of_keys(cls, axis: Axis, shown: NDArray[np.bool_]) -> Turns:
        """The pushes of keys, given whether each member computes something in each turn: [members, turns]."""
        return cls(axis, _without_own(shown), 1)

    @classmethod
    def of_gradients(cls, axis: Axis, shown: NDArray[np.bool_]) -> Turns:
        """The pushes of gradients, which go back to the owners of the keys."""
        turns = np.arange(shown.shape[1])
        by_owner = shown[(np.arange(axis.size)[:, None] + turns) % axis.size, turns]
        return cls(axis, _without_own(by_owner), -1)

    def reader(self, turn: int) -> int:
        """The rank that this rank pushes to in a turn."""
        return (self._axis.index + self._way * turn) % self._axis.size

    def going(self, turn: int) -> int | None:
        """The use of that rank's inbox. None if nothing is pushed."""
        return self._goes[turn] if turn < len(self._goes) and self._goes[turn] >= 0 else None

    def coming(self, turn: int) -> int | None:
        """The use of this rank's inbox in a turn. None if nothing arrives."""
        return self._mine[turn] if self._mine[turn] >= 0 else None


def _without_own(arrives: NDArray[np.bool_]) -> NDArray[np.bool_]:
    others = arrives.copy()
    others[:, 0] = False
    return others


class PushedKeys:
    """Keys and values of the rank whose turn it is. It has the methods of `longca_cp.kv_ring.KVRing`.

    k [T, H, D] and v [T, H, Dv] are this rank's, T = tokens[axis.index]. Without pushes there is no inbox.
    """

    def __init__(
        self, axis: Axis, box: Inbox | None, turns: Turns, tokens: Sequence[int], k: Tensor, v: Tensor
    ) -> None:
        self._axis, self._box, self._turns, self._tokens = axis, box, turns, tokens
        self._shapes, self._own, self._step = (k.shape[1:], v.shape[1:]), (k, v), 0
        self._width = sum(shape.numel() for shape in self._shapes)
        self._present: tuple[Tensor, Tensor] | None = k, v
        if box is not None:
            box.begin(turns.sources)

    @property
    def k(self) -> Tensor:
        """The keys of the rank whose turn it is: [T, H, D]. In an empty turn they have no values."""
        return self._both()[0]

    @property
    def v(self) -> Tensor:
        """The values of the rank whose turn it is: [T, H, D]. In an empty turn they have no values."""
        return self._both()[1]

    def send(self) -> None:
        """Begins to push this rank's keys and values to the rank that needs them in the next turn."""
        turn = self._step + 1
        if self._box is not None and (use := self._turns.going(turn)) is not None:
            self._box.put(self._turns.reader(turn), use, self._places, early=True)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Sends beside the kernel that is launched within the context, which a push may follow."""
        try:
            yield
        finally:  # a peer that waits for the keys gets them even if the kernel failed here
            self.send()

    def settle(self) -> None:
        """Nothing: the copy engines take no multiprocessors from a kernel."""

    def wait(self) -> None:
        """Frees the slot of this turn, and goes on to the next."""
        if self._box is not None and (use := self._turns.coming(self._step)) is not None:
            self._box.release(use)
        self._step, self._present = self._step + 1, None
        if self._box is not None and self._step == self._axis.size:
            self._box.joined()

    def _places(self, slot: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self._view(slot, self._axis.index), self._own, strict=True)

    def _both(self) -> tuple[Tensor, Tensor]:
        if self._present is None:
            use = self._turns.coming(self._step)
            if self._box is None or use is None:
                buffer = self._own[0].new_empty(max(self._tokens) * self._width)
            else:
                buffer = self._box.take(use)
            self._present = self._view(buffer, self._axis.source(self._step))
        return self._present

    def _view(self, buffer: Tensor, member: int) -> tuple[Tensor, Tensor]:
        """The keys and values in a buffer, for the tokens of a member."""
        return split_kv(buffer, self._tokens[member], self._shapes)

    def _flat(self, buffer: Tensor, member: int) -> Tensor:
        """The part of a buffer that has the keys and values of a member: [T · H · (D + Dv)]."""
        return buffer[: self._tokens[member] * self._width]


class PushedGradients(PushedKeys):
    """Keys and values, and the parts of their gradients. It has the methods of `longca_cp.kv_ring.GradientRing`."""

    def __init__(
        self,
        axis: Axis,
        boxes: tuple[Inbox | None, Inbox | None],
        turns: tuple[Turns, Turns],
        tokens: Sequence[int],
        k: Tensor,
        v: Tensor,
        length: int,
    ) -> None:
        super().__init__(axis, boxes[0], turns[0], tokens, k, v)
        self._parts, self._back, self._length = boxes[1], turns[1], length
        self._wide = torch.promote_types(k.dtype, torch.float32)
        self._part: Tensor | None = None
        self._leaves = False
        self._sum: Tensor | None = None
        self._added = 0
        if self._parts is not None:
            self._parts.begin(self._back.sources)

    @property
    def part(self) -> Tensor:
        """Buffer for this turn's gradients."""
        if self._part is None:
            self._part = self._own[0].new_empty(self._length)
        return self._part

    @property
    def dk(self) -> Tensor:
        """Buffer for this turn's gradient of the present keys, in `part`: [T, H, D]."""
        return self._view(self.part, self._axis.source(self._step))[0]

    @property
    def dv(self) -> Tensor:
        """Buffer for this turn's gradient of the present values, in `part`: [T, H, D]."""
        return self._view(self.part, self._axis.source(self._step))[1]

    def add(self, part: Tensor | None) -> None:
        """Pushes the gradients of the turn that has just ended to the owner of its keys. None stands for an empty turn.

        The parts of the turn before have arrived meanwhile, and are added up.
        """
        turn, self._part = self._step - 1, None
        if turn == 0:
            self._sum = part
            return
        self._join()
        if part is not None and self._parts is not None and (use := self._back.going(turn)) is not None:
            owner = self._back.reader(turn)
            flat = self._flat(part, owner)
            self._parts.put(owner, use, lambda slot: [(self._flat(slot, owner), flat)])
            self._leaves = True
        self._gather(turn - 1)

    def home_sum(self) -> Tensor:
        """After all turns, the sum of all ranks' gradients of this rank's keys and values, as a buffer."""
        self._join()
        self._gather(self._axis.size, keep=0)
        if self._sum is None:
            return torch.zeros(self._length, dtype=self._wide, device=self._own[0].device)
        return self._sum.to(self._wide)

    def home(self) -> tuple[Tensor, Tensor]:
        """After all turns, the gradients dk and dv of this rank's keys and values, in their dtype: [T, H, D] each."""
        self._join()
        self._gather(self._axis.size)
        dtype, index = self._own[0].dtype, self._axis.index
        total = self._sum
        if total is None:
            total = torch.zeros(self._length, dtype=dtype, device=self._own[0].device)
        mine = self._flat(total, index)
        result = mine if mine.dtype == dtype else torch.empty(mine.shape, dtype=dtype, device=mine.device)
        if self._added < len(self._back.arriving):
            assert self._parts is not None
            torch.add(mine, self._flat(self._parts.take(self._added), index), out=result)
            self._parts.release(self._added)
        elif result is not mine:
            result.copy_(mine)
        return self._view(result, index)

    def _gather(self, turn: int, keep: int = 1) -> None:
        """Adds the parts that arrived up to a turn to the sum, but for the last part, which `home` adds."""
        arriving = self._back.arriving
        while self._added < len(arriving) - keep and arriving[self._added] <= turn:
            assert self._parts is not None
            part = self._parts.take(self._added)
            if self._sum is None:
                self._sum = torch.empty(self._length, dtype=self._wide, device=part.device)
                self._flat(self._sum, self._axis.index).copy_(self._flat(part, self._axis.index))
            else:
                self._sum = self._sum.to(self._wide)
                self._flat(self._sum, self._axis.index).add_(self._flat(part, self._axis.index))
            self._parts.release(self._added)
            self._added += 1

    def _join(self) -> None:
        """Waits for the pushes of parts so far, whose memory is then free."""
        if self._leaves and self._parts is not None:
            self._parts.joined()
            self._leaves = False
