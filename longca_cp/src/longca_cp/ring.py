"""Rings: keys and values going round the ranks of an axis, and the sums of their gradients a step behind them.

At step s rank i has the keys of rank (i − s) mod n. There are two buffers: one is computed with and sent on, the other
receives. Buffers are as long as the longest shard, so that all messages are of one size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longca_cp.exchange import Transfer, shift
from longca_cp.mesh import Axis

__all__ = ["GradientRing", "KVRing"]


class KVRing:
    """Keys and values on their way round.

    Args:
        axis: The ring.
        tokens: How many tokens each of its ranks begins with.
        k: This rank's keys: [T, H, D], T = tokens[axis.index].
        v: Its values.
        longest: Most tokens that a buffer has to hold; None for the most of `tokens`.
    """

    def __init__(self, axis: Axis, tokens: Sequence[int], k: Tensor, v: Tensor, longest: int | None = None) -> None:
        self._axis, self._tokens, self._step = axis, tokens, 0
        self._heads, self._dtype, self._device = k.shape[1:], k.dtype, k.device
        self._length = 2 * (max(tokens) if longest is None else longest) * self._heads.numel()
        self._present = self._buffer(k.dtype)
        self._next = self._buffer(k.dtype) if axis.size > 1 else self._present
        self._transfer = Transfer()
        for row, x in zip(self._view(self._present), (k, v), strict=True):
            row.copy_(x)

    @property
    def k(self) -> Tensor:
        """The keys at hand: [T, H, D], of the rank whose turn it is."""
        return self._view(self._present)[0]

    @property
    def v(self) -> Tensor:
        """The values at hand: [T, H, D]."""
        return self._view(self._present)[1]

    def send(self) -> None:
        """Begins to send what is at hand, and to receive what comes next; in the last step nothing does."""
        if not self._is_last:
            self._transfer = shift(self._axis, [self._present], [self._next])

    def settle(self) -> None:
        """Has what was sent and what comes done before whatever is launched next, rather than beside it."""
        self._transfer.wait()

    def wait(self) -> None:
        """Waits for what comes next, and has it at hand."""
        self._transfer.wait()
        self._present, self._next = self._next, self._present
        self._step += 1

    @property
    def _is_last(self) -> bool:
        return self._step == self._axis.size - 1

    def _buffer(self, dtype: torch.dtype) -> Tensor:
        """Memory for the keys and values of any rank, or for the gradients of both."""
        return torch.empty(self._length, dtype=dtype, device=self._device)

    def _view(self, buffer: Tensor) -> Tensor:
        """A buffer's [2, T, H, D], T being the tokens of the rank whose turn it is."""
        tokens = self._tokens[self._axis.source(self._step)]
        return buffer[: 2 * tokens * self._heads.numel()].view(2, tokens, *self._heads)


class GradientRing(KVRing):
    """Keys and values on their way round, and the sums of their gradients behind them.

    Each rank adds its part to the sum that was sent to it, and sends it on with the next step. Sums are in float32
    (float64 for float64); the last hop takes each to the rank that its keys came from.
    """

    def __init__(self, axis: Axis, tokens: Sequence[int], k: Tensor, v: Tensor, longest: int | None = None) -> None:
        super().__init__(axis, tokens, k, v, longest)
        wide = torch.promote_types(k.dtype, torch.float32)
        self.part = self._buffer(k.dtype)
        self._sum = self._buffer(wide)
        self._arriving = self._buffer(wide) if axis.size > 1 else self._sum

    @property
    def dk(self) -> Tensor:
        """Where this step's gradient of the keys at hand goes, in `part`: [T, H, D]."""
        return self._view(self.part)[0]

    @property
    def dv(self) -> Tensor:
        """Where this step's gradient of the values at hand goes, in `part`: [T, H, D]."""
        return self._view(self.part)[1]

    def send(self) -> None:
        """Begins to send what is at hand and the last step's sum, and to receive what comes next and this step's."""
        keys = [] if self._is_last else [(self._present, self._next)]
        sums = [] if self._step == 0 else [(self._sum, self._arriving)]
        outgoing, incoming = zip(*keys, *sums, strict=True) if keys or sums else ((), ())
        if outgoing:
            self._transfer = shift(self._axis, outgoing, incoming)

    def add(self, part: Tensor | None) -> None:
        """Adds to the sum of the step that was just waited for.

        Args:
            part: A buffer of this step's gradients, such as `part`; None where the step shows nothing.
        """
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
        dk, dv = self._view(self.part if self._axis.size > 1 else self._next)
        return dk, dv
