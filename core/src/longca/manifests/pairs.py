"""Pairs: a forward kernel and a backward kernel chosen apart, named `forward+backward`. Torch-free.

Kernels compose by out and lse. A pair is valid if both conditions hold: its first half has a forward whose lse other
kernels can use, and its second half has a backward that takes another kernel's out and lse. The two may take the mask
in different forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longca.errors import RequestError
from longca.manifests import Direction
from longca.manifests.problem import Problem
from longca.manifests.verdict import Reason, Verdict

__all__ = ["HALVES", "asked_of_halves", "halves", "join", "pair_verdict", "singles", "split"]

#: The names of a pair's two kernels in messages.
HALVES = ("forward half", "backward half")


def split(name: str) -> tuple[str, str] | None:
    """The forward kernel and the backward kernel of a pair such as `fa3+fa4`, or None for the name of a single kernel.

    Raises:
        RequestError: More than one `+`, a half without a name, or one kernel twice.
    """
    if "+" not in name:
        return None
    forward, _, backward = name.partition("+")
    if not forward or not backward or "+" in backward:
        raise RequestError(f"kernel {name!r} is no pair; name two kernels, forward and backward, such as fa3+fa4")
    if forward == backward:
        raise RequestError(f"kernel {name!r} pairs a kernel with itself; name it once: {forward}")
    return forward, backward


def join(forward: str, backward: str) -> str:
    """The name of a forward kernel and a backward kernel together: of one kernel, its own name."""
    return forward if forward == backward else f"{forward}+{backward}"


def halves(problem: Problem) -> tuple[Problem, Problem]:
    """The problems of a pair's two kernels in training, from the pair's problem in either direction.

    Returns:
        A forward whose lse is fit for other kernels, and a backward that takes an lse of another kernel.
    """
    forward = replace(problem.in_direction(Direction.FORWARD), composed=True)
    backward = replace(problem, direction=Direction.BACKWARD, composed=True, backward_only=True)
    return forward, backward


def asked_of_halves(problem: Problem) -> tuple[Problem, ...]:
    """The problems of a pair's kernels: both `halves` in a backward, the first kernel's alone in a forward."""
    return (problem,) if problem.direction == "forward" else halves(problem)


def pair_verdict(name: str, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a pair: valid where the verdicts on its kernels are. Each of its reasons names a half.

    Args:
        name: The pair's name.
        verdicts: The verdicts on the problems that `asked_of_halves` gives its kernels.
    """
    reasons = tuple(
        _about(half, reason) for half, verdict in zip(HALVES, verdicts, strict=False) for reason in verdict.reasons
    )
    if reasons:
        return Verdict(name, None, reasons, (), tuple(verdicts))
    used = (offer for verdict in verdicts for offer in (verdict.offer, *verdict.offers) if offer is not None)
    unverified = any(verdict.unverified for verdict in verdicts)
    return Verdict(name, None, (), tuple(dict.fromkeys(used)), tuple(verdicts), unverified)


def _about(half: str, reason: Reason) -> Reason:
    """A reason that names the half it is about."""
    asked = "a pair's halves share a log-sum-exp" if reason.code == "composition" else reason.asked
    return replace(reason, offered=f"{half}: {reason.offered}", asked=asked)


def singles(name: str) -> tuple[str, ...]:
    """Every single kernel of a kernel or of a pair."""
    return split(name) or (name,)
