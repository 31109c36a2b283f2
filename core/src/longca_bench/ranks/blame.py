"""Blame: which rank ended a case, where several ended in it.

A rank that dies closes its connections, and those that wait for it raise; so where one has crashed, it was that one. A
rank that raises waits with its connections open, and no other learns of it; so of those that raised it was the first.
Where time ran out, it was the rank inside a kernel; if none is, the one that has come least far. Ranks that wait in a
collective have done nothing wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from longca_bench.measuring.messages import Outcome
from longca_bench.ranks.messages import COMPUTING, Answer

__all__ = ["blame", "has_failed"]


def has_failed(answer: Answer) -> bool:
    """Whether a rank came to no result."""
    return answer.outcome.status not in ("ok", "wrong", "stopped")


def blame(answers: Mapping[int, Answer], size: int, seconds: float) -> Outcome:
    """What came of a case that not all ranks ended well.

    Args:
        answers: What ranks answered, in the order in which they did.
        size: Ranks.
        seconds: The deadline.
    """
    failed = [rank for rank, answer in answers.items() if has_failed(answer)]
    if not failed:
        return _late(answers, size, seconds)
    first = min(failed, key=lambda rank: answers[rank].outcome.status != "crashed")
    answer = answers[first]
    message = f"rank {first} of {size}: {answer.outcome.message}, in phase {answer.phase!r}"
    also = sorted(set(failed) - {first})
    if also:
        message += f"; after it {_ranks(also)} failed"
    return Outcome(answer.outcome.status, message, {})


def _late(answers: Mapping[int, Answer], size: int, seconds: float) -> Outcome:
    left = {rank: answer for rank, answer in answers.items() if answer.outcome.status == "stopped"}
    silent = sorted(set(range(size)) - set(answers))
    inside = [rank for rank, answer in left.items() if answer.phase.startswith(COMPUTING)]
    least = min((answer.phases for answer in left.values()), default=0)
    culprits = silent or sorted(inside or [rank for rank, answer in left.items() if answer.phases == least])
    phases = dict.fromkeys(left[rank].phase if rank in left else "unknown" for rank in culprits)
    verb = "is" if len(culprits) == 1 else "are"
    others = "" if len(culprits) == size else ", and the others wait"
    message = f"{_ranks(culprits)} of {size} {verb} still in phase {', '.join(map(repr, phases))} after {seconds:g} s"
    return Outcome("timeout", f"{message}{others}; all were ended", {})


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
