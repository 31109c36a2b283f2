"""Blame: the rank that ended a case, if several ranks failed.

A rank that dies closes its connections, and the ranks that wait for it raise. So a crashed rank is to blame before all
others. A rank that raises keeps its connections open, and no other rank learns of it. So the first rank that raised is
to blame. If time ran out, the rank inside a kernel or a push is to blame, or else the rank with the fewest phases. A
rank that waits in a collective, or for the pushes of others, has done nothing wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from longca_bench.measuring.messages import COMPUTING, PUSHING, Result
from longca_bench.measuring.status import Status
from longca_bench.ranks.messages import RankResult

__all__ = ["blame", "has_failed"]


def has_failed(answer: RankResult) -> bool:
    """Whether a rank failed by itself. Wrong and suspect results are the same on all ranks, and end no group."""
    return answer.result is not None and answer.result.status not in (Status.OK, Status.WRONG, Status.SUSPECT)


def blame(answers: Mapping[int, RankResult], size: int, seconds: float) -> Result:
    """The result of a case that some rank did not end well.

    Args:
        answers: The results of ranks, in the order in which they came.
        size: Number of ranks.
        seconds: The deadline.
    """
    failed = {rank: answer.result for rank, answer in answers.items() if answer.result and has_failed(answer)}
    if not failed:
        return _late(answers, size, seconds)
    first = min(failed, key=lambda rank: failed[rank].status is not Status.CRASHED)
    message = f"rank {first} of {size}: {failed[first].message}, in phase {answers[first].phase!r}"
    also = sorted(set(failed) - {first})
    if also:
        message += f"; after it {_ranks(also)} failed"
    return Result(failed[first].status, message, {})


def _late(answers: Mapping[int, RankResult], size: int, seconds: float) -> Result:
    left = {rank: answer for rank, answer in answers.items() if answer.result is None}
    silent = sorted(set(range(size)) - set(answers))
    inside = [rank for rank, answer in left.items() if answer.phase.startswith((COMPUTING, PUSHING))]
    least = min((answer.phases for answer in left.values()), default=0)
    culprits = silent or sorted(inside or [rank for rank, answer in left.items() if answer.phases == least])
    phases = dict.fromkeys(left[rank].phase if rank in left else "unknown" for rank in culprits)
    verb = "is" if len(culprits) == 1 else "are"
    others = "" if len(culprits) == size else ", and the others wait"
    message = f"{_ranks(culprits)} of {size} {verb} still in phase {', '.join(map(repr, phases))} after {seconds:g} s"
    return Result(Status.TIMEOUT, f"{message}{others}; all were ended", {})


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
