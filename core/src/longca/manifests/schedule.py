"""Schedules: the computation and the moves of one call of a strategy in order, as data without torch.

A strategy's manifest names a function that gives the schedule of a layout. `longca_advice.timeline` computes the time
of a call from the schedule, the seconds of every step, a network and the bandwidth of the device's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOVES", "Move", "Phase", "Schedule"]

#: The kinds of collectives that a move can be, as records name them. By a push ranks write into each other's memory.
MOVES = ("p2p", "all_to_all", "all_gather", "reduce_scatter", "push")


@dataclass(frozen=True)
class Move:
    """One collective among the ranks along one axis, all groups of that axis at once.

    Attributes:
        kind: One of `MOVES`. A `p2p` is a batch of one send to the next rank and one receive from the rank before.
        axis: The strategy's axis.
        bytes: Its size as nccl-tests count it, on the rank that has most. An all-gather counts the bytes that a rank
            ends up with. A reduce-scatter or an all-to-all counts the bytes that a rank gives, and a p2p the bytes that
            it sends.
        sent: Bytes that leave a rank or reach it, on the rank with most. A rank's own part of a collective does not
            count. Bus bandwidths refer to these bytes.
        spread: Number of phases that it may take, from this one on. The last of them waits for it.
        carries: The tensors that it moves, such as `k, v`, for pictures. Empty where the strategy does not say.
    """

    kind: str
    axis: str
    bytes: int
    sent: int
    spread: int = 1
    carries: str = ""


@dataclass(frozen=True)
class Phase:
    """The work of a rank between two waits: it copies, begins the moves, computes, and waits for the moves.

    Attributes:
        step: Index of the layout's step to compute, or None for no step.
        share: Share of the step's heads to compute, from 0 to 1.
        moves: The collectives of the phase, one after another.
        beside: Whether the moves run while the step is computed, and not before it. One value for all ranks, or one for
            each.
        touched: Bytes that the rank with most reads and writes in its memory beside the kernel, for packing and
            casting.
        merged: The same for merging the step's result, on ranks whose step is not empty.
    """

    step: int | None = None
    share: float = 1.0
    moves: tuple[Move, ...] = ()
    beside: bool | tuple[bool, ...] = True
    touched: int = 0
    merged: int = 0


#: The phases of one call, in their order.
Schedule = tuple[Phase, ...]
