"""Schedules: what one call of a strategy computes and moves, and in which order, as data without torch.

A strategy's manifest names a function that gives the schedule of a layout. Together with the seconds of every step, a
network and the bandwidth of the device's memory it says how long a call takes (`longca.advice.timeline`).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOVES", "Move", "Phase", "Schedule"]

#: The kinds of collectives that a move can be, as records name them.
MOVES = ("p2p", "all_to_all", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Move:
    """One collective among the ranks along one axis, all groups of that axis at once.

    Attributes:
        kind: One of `MOVES`; `p2p` is a batch of one send to the next rank and one receive from the rank before.
        axis: The strategy's axis.
        bytes: Its size as nccl-tests count it, on the rank that has most: what an all-gather gives a rank in the end,
            what a rank gives to a reduce-scatter or an all-to-all, and what it sends in a p2p.
        sent: Bytes that leave a rank or reach it, on the rank with most; its own part of a collective is not among
            them. Bus bandwidths are of these.
        spread: Phases, from this one on, that it may take; the last of them waits for it.
    """

    kind: str
    axis: str
    bytes: int
    sent: int
    spread: int = 1


@dataclass(frozen=True)
class Phase:
    """What a rank does between two waits: it copies, begins the moves, computes, and waits for them.

    Attributes:
        step: Index of the layout's step that is computed; None for none.
        share: Share of the step's heads that is computed, from 0 to 1.
        moves: The collectives that are under way, one after another.
        beside: Whether the moves are under way while the step is computed, and not done before; of all ranks, or of
            each.
        touched: Bytes that the rank with most reads and writes in its memory beside the kernel: packing, casting.
        merged: The same for ranks on which the step shows something: what its result takes to be merged.
    """

    step: int | None = None
    share: float = 1.0
    moves: tuple[Move, ...] = ()
    beside: bool | tuple[bool, ...] = True
    touched: int = 0
    merged: int = 0


#: The phases of one call, in their order.
Schedule = tuple[Phase, ...]
