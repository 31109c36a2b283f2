"""The door by which `attention` and `layout` reach the adviser, and the choices that it returns.

`longca_advice` is imported when `auto` is first asked for. Nothing else of `longca` imports it.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass
from typing import Any

from longca.manifests.kernel import AUTO

__all__ = ["AUTO", "Arrangement", "Choice", "adviser", "log"]

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
        better: A faster kernel that is not installed, and a sentence on it. None without one.
    """

    kernel: str
    subject: str
    reason: str
    level: int = logging.INFO
    wrong: tuple[str, ...] = ()
    better: tuple[str, str] | None = None

    @property
    def announcement(self) -> str:
        """The choice and its reason."""
        return f"attention: {self.subject}: {self.reason}"


@dataclass(frozen=True)
class Arrangement:
    """The chosen strategy and placement, and the choice of the kernel that they were made for."""

    strategy: str
    placement: str
    choice: Choice


def adviser() -> Any:
    """The module whose functions choose kernels, strategies and placements: `choose`, `choose_kernel` and `arrange`."""
    return importlib.import_module("longca_advice.auto_layout")


def log(choice: Choice) -> None:
    """Logs a choice and its reason, once for several alike. Logs errors in the history once, and a better kernel."""
    for text in choice.wrong:
        _say(text, logging.WARNING, text)
    if choice.better is not None:
        _say(choice.better[0], logging.WARNING, choice.better[1])
    _say(choice.subject, choice.level, choice.announcement)


def _say(subject: str, level: int, text: str) -> None:
    if (subject, level) not in _LOGGED:
        _LOGGED.add((subject, level))
        _log.log(level, text)
