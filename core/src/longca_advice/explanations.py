"""Explanations: a choice that `auto` made, with its reason in words."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from longca.adviser import Choice
from longca.manifests import Problem
from longca_advice.candidates import Candidate
from longca_advice.sources import sources
from longca_advice.strategy_candidates import StrategyCandidate

__all__ = ["explained", "interval", "subject"]


def subject(problem: Problem, title: str) -> str:
    """A choice and the mask that it is for, in words."""
    return f"{title} for {problem.mask.label}{' in training' * (problem.direction == 'backward')}"


def interval(seconds: float, low: float, high: float) -> str:
    """A predicted time and its interval in words."""
    return f"{_time(seconds)} ({_time(low)} to {_time(high)})"


def explained(found: Candidate | StrategyCandidate, about: str, sentences: Sequence[str], fits: bool) -> Choice:
    """A prediction as a choice with its reason: the time and its evidence, further sentences, and warnings.

    Args:
        found: The prediction.
        about: The subject of the choice.
        sentences: The further sentences.
        fits: Whether the choice fits into the memory.
    """
    proof = found.proof
    said = [
        f"predicted to take {interval(found.seconds, *found.interval)}, {proof.learnt}, the nearest in {proof.nearest}",
        *sentences,
    ]
    if proof.outside:
        said.append(f"The prediction extrapolates: {'; '.join(proof.outside)}")
    if proof.versions:
        said.append(f"The versions differ: {'; '.join(proof.versions)}")
    level = logging.WARNING if proof.outside or not fits else logging.INFO
    return Choice(found.kernel, about, ". ".join(said), level, sources().notes)


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
