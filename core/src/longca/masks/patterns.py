"""Patterns: named families of masks, their registry, and `build`, which checks factors and makes a mask.

`static_patterns` and `dynamic_patterns` have the fourteen patterns of LongCA-bench. A plugin adds its own with
`register`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from longca.errors import MaskError, RequestError, UnknownNameError
from longca.masks.factors import FACTORS
from longca.masks.forms import Form
from longca.masks.mask import Mask, check_seqlen
from longca.masks.slices import UNBOUNDED

__all__ = ["PATTERNS", "Pattern", "build", "check_factor_names", "get_pattern", "register"]


@dataclass(frozen=True, eq=False)
class Pattern:
    """A named family of masks.

    It answers the questions of a verdict for all of its masks together. So a kernel can be listed for a
    pattern without a mask at hand.

    Attributes:
        name: Identifier, as `build` takes it.
        title: The name that people read.
        summary: The condition under which query i sees key j.
        factors: Keywords that `build` needs.
        make: Function that makes the mask from seqlen_q, seqlen_k and the checked factors.
        forms: Forms that every mask of the pattern admits, with the largest count of intervals or layers. None means
            that the count grows with the mask.
        defaults: Default values of optional factors.
        rectangular: Whether the pattern is defined for Sq ≠ Sk.
        per_head: Whether heads may differ.
        has_uniform_blocks: Whether its masks are block-sparse with blocks of one size.
    """

    name: str
    title: str
    summary: str
    factors: tuple[str, ...]
    make: Callable[..., Mask]
    forms: Mapping[Form, int | None]
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    rectangular: bool = False
    per_head: bool = False
    has_uniform_blocks: bool = False

    @property
    def label(self) -> str:
        """The name of the pattern in a message."""
        return self.name

    @property
    def noun(self) -> str:
        """A mask of the pattern in a sentence, after an article."""
        return f"{self.name} mask"

    @property
    def heads(self) -> int:
        """2 if heads may differ, so that only kernels that take such masks are listed. Else 1."""
        return 2 if self.per_head else 1

    @property
    def block_size(self) -> int | None:
        """None, because a pattern's masks may have any block size."""
        return None

    @property
    def is_square(self) -> bool:
        """True, because patterns are listed for as many queries as keys."""
        return True

    def admits(self, form: Form) -> bool:
        """Whether every mask of the pattern admits a form."""
        return form in self.forms

    def count(self, form: Form) -> int:
        """The largest number of intervals or layers that a mask of the pattern takes."""
        most = self.forms[form]
        return UNBOUNDED if most is None else most


PATTERNS: dict[str, Pattern] = {}


def register(pattern: Pattern) -> Pattern:
    """Adds a pattern to the registry.

    Its name is free, and its factors are among FACTORS, or it raises RequestError.
    """
    if pattern.name in PATTERNS:
        raise RequestError(f"a mask pattern named {pattern.name!r} is registered already; choose another name")
    for factor in pattern.factors:
        if factor not in FACTORS:
            raise UnknownNameError("mask factor", factor, FACTORS)
    PATTERNS[pattern.name] = pattern
    return pattern


def get_pattern(name: str) -> Pattern:
    """A pattern by its name, or UnknownNameError."""
    if name not in PATTERNS:
        raise UnknownNameError("mask pattern", name, PATTERNS)
    return PATTERNS[name]


def build(pattern: str, seqlen: int, *, seqlen_k: int | None = None, **factors: Any) -> Mask:
    """Builds a mask from explicit factors.

    Args:
        pattern: Name of a pattern in PATTERNS.
        seqlen: Number of queries. It is also the number of keys unless seqlen_k is given.
        seqlen_k: Number of keys, for patterns that are defined for Sq ≠ Sk.
        **factors: The pattern's factors. FACTORS gives the meaning of each.

    Raises:
        UnknownNameError: The pattern or a factor is unknown.
        MaskError: A length or factor does not fit, or a factor is missing.
    """
    kind = get_pattern(pattern)
    seqlen_q = check_seqlen(seqlen)
    keys = seqlen_q if seqlen_k is None else check_seqlen(seqlen_k, "seqlen_k")
    if keys != seqlen_q and not kind.rectangular:
        able = ", ".join(p.name for p in PATTERNS.values() if p.rectangular)
        raise MaskError(f"{pattern} needs as many keys as queries, not {keys} for {seqlen_q}; Sq ≠ Sk is for {able}")
    check_factor_names(pattern, factors)
    given = {**kind.defaults, **factors}
    missing = [name for name in kind.factors if name not in given]
    if missing:
        needs = "; ".join(f"{name}: {FACTORS[name].meaning}" for name in missing)
        raise MaskError(f"{pattern} also needs {needs}. Give it, or draw it with masks.sample")
    checked = {name: FACTORS[name].check(given[name], seqlen_q) for name in kind.factors}
    mask = kind.make(seqlen_q, keys, **checked)
    mask.pattern, mask.factors = pattern, checked
    return mask


def check_factor_names(pattern: str, names: Iterable[str]) -> None:
    """Refuses factors that a pattern does not take: UnknownNameError, or MaskError for a factor of other patterns."""
    kind = get_pattern(pattern)
    for name in names:
        if name not in kind.factors:
            if name in FACTORS:
                takes = ", ".join(kind.factors) or "no factors"
                raise MaskError(f"{pattern} takes no factor {name!r}; it takes {takes}")
            raise UnknownNameError(f"factor of {pattern}", name, kind.factors)
