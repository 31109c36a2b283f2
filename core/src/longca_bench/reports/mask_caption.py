"""Captions: a mask's factors and figures in words, for a picture on paper or on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from longca.masks import PATTERNS, Mask

__all__ = ["caption", "describe_factors", "factor_words", "mask_title", "percent", "token_count"]


def caption(mask: Mask) -> list[str]:
    """The lines below a picture: size, factors, area, density and tile efficiency at 128."""
    size = _counted(mask.seqlen_q, "token", "tokens")
    if not mask.is_square:
        size = f"{_counted(mask.seqlen_q, 'query', 'queries')} × {_counted(mask.seqlen_k, 'key', 'keys')}"
    over = f" over {mask.heads} heads" if mask.heads > 1 else ""
    return [
        ", ".join([size, *describe_factors(mask)]),
        f"area {mask.area:,}{over}",
        f"density {percent(mask.density)}, tile efficiency at 128: {percent(mask.tile_efficiency(128, 128))}",
    ]


def mask_title(mask: Mask) -> str:
    """The title of the mask's pattern."""
    pattern = PATTERNS.get(mask.pattern or "")
    return pattern.title if pattern else mask.pattern or "Mask"


def describe_factors(mask: Mask) -> list[str]:
    """Each factor in a few words, however many documents or blocks it lists."""
    return factor_words(mask.factors)


def factor_words(factors: Mapping[str, Any]) -> list[str]:
    """Factors as `describe_factors` has them, of a mask that is not at hand."""
    return [_WORDS.get(name, _plain(name))(value) for name, value in factors.items()]


def token_count(tokens: int) -> str:
    """A number of tokens for an axis: in halves of K or M where that is exact."""
    for unit, letter in ((2**20, "M"), (2**10, "K")):
        if tokens >= unit and tokens * 2 % unit == 0:
            return f"{tokens / unit:g} {letter}"
    return f"{tokens:,}"


def percent(share: float) -> str:
    """One decimal, or two significant digits where that would be 0; never all for less than all."""
    if 0 < share < 0.001:
        return f"{share * 100:.2g} %"
    return "> 99.9 %" if 0.9995 <= share < 1 else f"{share * 100:.1f} %"


def _counted(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _listed(lengths: tuple[int, ...], noun: str) -> str:
    if 1 < len(lengths) <= 4:
        return f"{noun}s of {', '.join(f'{n:,}' for n in lengths)}"
    count = _counted(len(lengths), noun, f"{noun}s")
    return count if len(lengths) == 1 else f"{count} of {min(lengths):,} to {max(lengths):,}"


def _boundaries(bounds: tuple[int, ...]) -> str:
    return _listed(tuple(b - a for a, b in pairwise(bounds)), "block")


def _plain(name: str) -> Callable[[Any], str]:
    def words(value: Any) -> str:
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        return f"{name.replace('_', ' ')} {shown}"

    return words


_WORDS: dict[str, Callable[[Any], str]] = {
    "documents": lambda lengths: _listed(lengths, "document"),
    "boundaries": _boundaries,
    "kept": lambda share: f"{share * 100:g} % kept",
    "heads": lambda heads: _counted(heads, "head", "heads"),
    "seed": lambda seed: f"seed {seed}",
}
