"""Announced: a choice that `auto` made, with its reason in words, and the log that tells it once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from longca.manifests import Problem
from longca_advice.kernels import Candidate
from longca_advice.sources import sources
from longca_advice.weighed import Weighed

__all__ = ["Choice", "explained", "interval", "log", "subject"]

_log = logging.getLogger("longca")

#: The subjects of choices and the sentences on this machine's history that were logged already.
_LOGGED: set[tuple[str, int]] = set()


@dataclass(frozen=True)
class Choice:
    """The chosen kernel, and why.

    Attributes:
        kernel: Name of the kernel, or of the pair.
        subject: The choice and its mask, in words.
        reason: The reason, in sentences.
        level: The level to log it at: WARNING if the prediction extrapolates or nothing fits, or else INFO.
        wrong: The errors in this machine's history, in sentences.
    """

    kernel: str
    subject: str
    reason: str
    level: int = logging.INFO
    wrong: tuple[str, ...] = ()

    @property
    def announcement(self) -> str:
        """The choice and its reason."""
        return f"attention: {self.subject}: {self.reason}"


def log(choice: Choice) -> None:
    """Logs a choice and its reason, once for several alike. Logs errors in the history once, too."""
    for text in choice.wrong:
        _say(text, logging.WARNING, text)
    _say(choice.subject, choice.level, choice.announcement)


def _say(subject: str, level: int, text: str) -> None:
    if (subject, level) not in _LOGGED:
        _LOGGED.add((subject, level))
        _log.log(level, text)


def subject(problem: Problem, title: str) -> str:
    """A choice and the mask that it is for, in words."""
    return f"{title} for {problem.mask.label}{' in training' * (problem.direction == 'backward')}"


def interval(seconds: float, low: float, high: float) -> str:
    """A predicted time and its interval in words."""
    return f"{_time(seconds)} ({_time(low)} to {_time(high)})"


def explained(found: Candidate | Weighed, about: str, sentences: Sequence[str], fits: bool) -> Choice:
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
