"""Rings: keys and values travel round the ranks of an axis, and the sums of their gradients follow a step behind.

At step s rank i has the keys of rank (i − s) mod n. Keys and values lie one after another in a buffer, so one message
moves both. There are two buffers: the rank computes with one and sends it on, and the other receives. Buffers are as
long as the longest shard, so that all messages have one size.

A plan has a transport for each of its rings: keys are passed on from rank to rank by collectives, or pushed straight to
their readers (`longca_cp.pushed_ring`). It makes the ring of each call. A ring of one rank pushes and copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.manifests import Layout, Problem
from longca.manifests.step_cuts import step_areas
from longca_cp.exchange import Axis, Transfer, shift
from longca_cp.heads import split_kv
from longca_cp.inbox import Request
from longca_cp.pushed_ring import PushedGradients, PushedKeys, Turns

__all__ = ["GradientRing", "KVRing", "RingTransport", "Round", "shown_steps"]


class KVRing:
    """Keys and values on their way round.

    k [T, H, D] and v [T, H, Dv] are this rank's, T = tokens[axis.index]. A buffer has room for the longest shard.
    """

    def __init__(self, axis: Axis, tokens: Sequence[int], k: Tensor, v: Tensor, longest: int | None = None) -> None:
        self._axis, self._tokens, self._step = axis, tokens, 0
        self._shapes, self._dtype, self._device = (k.shape[1:], v.shape[1:]), k.dtype, k.device
        width = sum(shape.numel() for shape in self._shapes)
        self._length = (max(tokens) if longest is None else longest) * width
        self._present = self._buffer(k.dtype)
        self._next = self._buffer(k.dtype) if axis.size > 1 else self._present
        self._transfer = Transfer()
        for row, x in zip(self._view(self._present), (k, v), strict=True):
            row.copy_(x)

    @property
    def k(self) -> Tensor:
        """The keys of the rank whose turn it is: [T, H, D]."""
        return self._view(self._present)[0]

    @property
    def v(self) -> Tensor:
        """The values of the rank whose turn it is: [T, H, D]."""
        return self._view(self._present)[1]

    def send(self) -> None:
        """Begins to send the present keys and values and to receive the next ones. The last step moves nothing."""
        if not self._is_last:
            self._transfer = shift(self._axis, [self._present], [self._next])

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Sends beside the kernel that is launched within the context. A collective begins before it."""
        self.send()
        yield

    def settle(self) -> None:
        """Waits for the transfer before the next kernel, so that the two do not run side by side."""
        self._transfer.wait()

    def wait(self) -> None:
        """Waits for the next keys and values, and makes them the present ones."""
        self._transfer.wait()
        self._present, self._next = self._next, self._present
        self._step += 1

    @property
    def _is_last(self) -> bool:
        return self._step == self._axis.size - 1

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        """Memory for the keys and values of any rank, or for the gradients of both."""
        return torch.empty(self._length, dtype=dtype, device=self._device)

    def _view(self, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values in a buffer, for the tokens of the rank whose turn it is."""
        return split_kv(buffer, self._tokens[self._axis.source(self._step)], self._shapes)


class GradientRing(KVRing):
    """Keys and values on their way round, and the sums of their gradients behind them.

    Each rank adds its `part` to the sum that it received, and sends the sum on with the next step. Sums are in float32
    (float64 for float64). The last hop takes each sum to the rank of its keys.
    """

    def __init__(self, axis: Axis, tokens: Sequence[int], k: Tensor, v: Tensor, longest: int | None = None) -> None:
        super().__init__(axis, tokens, k, v, longest)
        wide = torch.promote_types(k.dtype, torch.float32)
        self.part = self._buffer(k.dtype)
        self._sum = self._buffer(wide)
        self._arriving = self._buffer(wide) if axis.size > 1 else self._sum

    @property
    def dk(self) -> Tensor:
        """Buffer for this step's gradient of the present keys, in `part`: [T, H, D]."""
        return self._view(self.part)[0]

    @property
    def dv(self) -> Tensor:
        """Buffer for this step's gradient of the present values, in `part`: [T, H, D]."""
        return self._view(self.part)[1]

    def send(self) -> None:
        """Begins to send the present keys and the last step's sum, and to receive the next keys and this step's sum."""
        keys = [] if self._is_last else [(self._present, self._next)]
        sums = [] if self._step == 0 else [(self._sum, self._arriving)]
        outgoing, incoming = zip(*keys, *sums, strict=True) if keys or sums else ((), ())
        if outgoing:
            self._transfer = shift(self._axis, outgoing, incoming)

    def add(self, part: Tensor | None) -> None:
        """Adds this step's gradients, a buffer such as `self.part`, or None, to the sum that has just arrived."""
        if self._step == 1:
            self._sum.zero_() if part is None else self._sum.copy_(part)
            return
        if part is not None:
            self._arriving.add_(part)
        self._sum, self._arriving = self._arriving, self._sum

    def home_sum(self) -> Tensor:
        """After all steps, the sum of all ranks' gradients of this rank's keys and values, as a buffer."""
        if self._axis.size == 1:
            return self._sum
        shift(self._axis, [self._sum], [self._arriving]).wait()
        return self._arriving

    def home(self) -> tuple[Tensor, Tensor]:
        """After all steps, the gradients dk and dv of this rank's keys and values, in their dtype: [T, H, D] each.

        The sums are complete before the last hop, so they are rounded before it and not after.
        """
        self._next.copy_(self._sum)
        if self._axis.size > 1:
            shift(self._axis, [self._next], [self.part]).wait()
        return self._view(self.part if self._axis.size > 1 else self._next)


@dataclass(frozen=True)
class Round:
    """One time round a ring."""

    tokens: Sequence[int]  # that each member begins with: [members]
    shown: NDArray[np.bool_]  # whether each member computes something in each turn: [members, turns]


def shown_steps(problem: Problem, layout: Layout) -> NDArray[np.bool_]:
    """Whether each step of each rank shows some pair: [ranks, steps]."""
    return step_areas(problem, layout).reshape(layout.world_size, -1) > 0


class RingTransport:
    """The way of one ring of a plan, which makes the ring of each call. The first call that pushes makes inboxes.

    A ring of one rank takes the way of pushes, and has no inbox. Buffers have room for the longest member's tokens. The
    parts of gradients may be sums already (`wide`), which travel in float32 (float64 for float64).
    """

    def __init__(
        self, axis: Axis, problem: Problem, heads_kv: int, rounds: Sequence[Round], *, longest: int, wide: bool = False
    ) -> None:
        self._axis, self._rounds, self._longest = axis, rounds, longest
        self._pushes = axis.link is not None or axis.size == 1
        if self._pushes:
            self._there = [Turns.of_keys(axis, each.shown) for each in rounds]
            self._back = [Turns.of_gradients(axis, each.shown) for each in rounds]
            self._length, dtype = longest * heads_kv * sum(problem.dims), getattr(torch, problem.dtype)
            part = torch.promote_types(dtype, torch.float32) if wide else dtype
            most = (max(each.most for each in turns) for turns in (self._there, self._back))
            self._keys = Request(axis.link, "keys and values", self._length, dtype, next(most))
            self._parts = Request(axis.link, "gradients", self._length, part, next(most))

    def keys(self, k: Tensor, v: Tensor, turn: int = 0) -> KVRing | PushedKeys:
        """A time round of this rank's keys and values: [T, H, D]."""
        tokens = self._rounds[turn].tokens
        if not self._pushes:
            return KVRing(self._axis, tokens, k, v, self._longest)
        return PushedKeys(self._axis, self._keys.inbox, self._there[turn], tokens, k, v)

    def gradients(self, k: Tensor, v: Tensor, turn: int = 0) -> GradientRing | PushedGradients:
        """A time round with gradients."""
        tokens = self._rounds[turn].tokens
        if not self._pushes:
            return GradientRing(self._axis, tokens, k, v, self._longest)
        boxes, turns = (self._keys.inbox, self._parts.inbox), (self._there[turn], self._back[turn])
        return PushedGradients(self._axis, boxes, turns, tokens, k, v, self._length)
