"""When a rank computes and when its links are busy, from the order in which it begins and waits for things.

Computing and each axis's links are streams, as they are on a GPU: a transfer begins when what was computed before it is
done and the link is free, and a wait holds computing up until the transfer has ended. Lengths are schematic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallel_rehearsal import Move, Part

#: The longest transfer over the longest attention call.
_SLOWEST = 0.6
#: The shortest transfer over the longest attention call.
_QUICKEST = 0.12


@dataclass(frozen=True)
class Span:
    """A stretch of time.

    Attributes:
        start: When it begins.
        stop: When it ends.
    """

    start: float
    stop: float


@dataclass(frozen=True)
class Schedule:
    """When what happens on a rank.

    Attributes:
        calls: Of each attention call.
        moves: Of each collective.
    """

    calls: tuple[Span, ...]
    moves: tuple[Span, ...]


def schedule(part: Part, work: Sequence[float]) -> Schedule:
    """The times of one rank.

    Args:
        part: What it does.
        work: How long each attention call takes.
    """
    now, free = 0.0, dict.fromkeys((move.axis for move in part.moves), 0.0)
    calls: list[Span] = []
    moves: list[Span] = []
    for event in part.events:
        if event.what == "begin":
            move = part.moves[event.index]
            start = max(now, free[move.axis])
            moves.append(Span(start, start + _length(move, part, max(work))))
            free[move.axis] = moves[-1].stop
        elif event.what == "wait":
            now = max(now, moves[event.index].stop)
        else:
            calls.append(Span(now, now + work[event.index]))
            now = calls[-1].stop
    return Schedule(tuple(calls), tuple(moves))


def _length(move: Move, part: Part, longest: float) -> float:
    share = move.sent / max(each.sent for each in part.moves)
    return longest * max(_QUICKEST, _SLOWEST * share)


def next_call(part: Part, move: int) -> int | None:
    """The attention call that waits for a move; None where none does."""
    waited = False
    for event in part.events:
        waited = waited or (event.what, event.index) == ("wait", move)
        if waited and event.what == "call":
            return event.index
    return None


def first_call_after(part: Part, move: int) -> int:
    """How many attention calls were made before a move began."""
    calls = 0
    for event in part.events:
        if (event.what, event.index) == ("begin", move):
            break
        calls += event.what == "call"
    return calls


def is_hidden(part: Part, move: int) -> bool:
    """Whether an attention call is made while a move is under way."""
    begun = False
    for event in part.events:
        begun = begun or (event.what, event.index) == ("begin", move)
        if begun and event.what == "call":
            return True
        if (event.what, event.index) == ("wait", move):
            return False
    return False
