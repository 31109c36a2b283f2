"""The texts of numbers, masks and statuses in tables, charts and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longca_bench.measuring.status import Status

__all__ = [
    "brief_percent",
    "counted",
    "elsewhere_text",
    "mask_name",
    "memory_unit",
    "ratio_text",
    "shared_by",
    "status_counts",
    "three_digits",
    "throughput_unit",
    "times",
    "tokens",
    "word",
]


def three_digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    for bound, digits in ((0.0995, 4), (0.995, 3), (9.95, 2), (99.5, 1)):
        if value < bound:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def tokens(seqlen: int) -> str:
    """A length in M or K if that is exact."""
    if seqlen % 2**20 == 0:
        return f"{seqlen // 2**20} M"
    return f"{seqlen // 1024} K" if seqlen % 1024 == 0 else str(seqlen)


def times(value: float) -> str:
    """A ratio with two decimals."""
    return f"{value:.2f}"


def ratio_text(value: float) -> str:
    """A ratio with three decimals near 1, and three digits far from it."""
    return f"{value:.3f}" if 0.1 <= value < 10 else three_digits(value)


def brief_percent(share: float) -> str:
    """A share as a percentage: with one decimal below 100 %, and without above."""
    return f"{share:.1%}".replace("-0.0%", "0.0%") if abs(share) < 1 else f"{share:.0%}"


def throughput_unit(best: float | None) -> tuple[str, float]:
    """TFLOP/s, or GFLOP/s if nothing reaches one TFLOP/s, and the number of it that is one TFLOP/s."""
    return ("GFLOP/s", 1e3) if best is not None and best < 1 else ("TFLOP/s", 1.0)


def memory_unit(most: float) -> tuple[str, float]:
    """GiB, or MiB if nothing reaches one GiB, and the number of it that is one byte."""
    return ("MiB", 2.0**-20) if most < 2**30 else ("GiB", 2.0**-30)


def word(status: str) -> str:
    """The text of a status in tables and charts."""
    return {each.value: each.word for each in Status}.get(status, status.upper())


def counted(number: int, noun: str = "case") -> str:
    """A number and its noun."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def elsewhere_text(number: int, kernels: Iterable[str]) -> str:
    """A sentence on a number of cases, whose kernels run on other devices only."""
    names = ", ".join(kernels)
    return f"{counted(number, 'further case')} unsupported, of kernels that run on other devices only: {names}"


def status_counts(statuses: Iterable[str]) -> str:
    """The number of cases, and of each status."""
    found = Counter(statuses)
    return f"{counted(found.total())}: " + ", ".join(f"{count} {status}" for status, count in found.items())


def mask_name(pattern: str, factors: Mapping[str, Any]) -> str:
    """The name of a mask in tables: its pattern and the values of the factors that its suite gives."""
    shown = ", ".join(_brief(name, value) for name, value in factors.items())
    return f"{pattern} {shown}" if shown else pattern


def shared_by(kernel: str, strategy: str | None, placement: str | None, mesh: str | None, transport: str | None) -> str:
    """A kernel and the way in which several ranks share it."""
    if strategy is None:
        return kernel
    return f"{kernel} with {moved_by(strategy, transport)} {placement}, {mesh}"


def moved_by(strategy: str, transport: str | None) -> str:
    """A strategy, with its transport if that was asked for."""
    return strategy if transport is None else f"{strategy} by {transport}"


def _brief(name: str, value: Any) -> str:
    if name == "kept":
        return f"{value * 100:g} %"
    return f"{len(value)} {name}" if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
