"""Patterns: named families of masks, their registry, and `build`, which checks factors and makes a mask.

`paper_patterns` has the fourteen patterns of LongCA-bench. A plugin adds its own with `register`. A factor is a keyword
of a pattern, with the check that its value fits the mask. `get_pattern` makes patterns of intersections and of files.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from longca.errors import MaskError, RequestError, UnknownNameError
from longca.limits import MAX_DOCUMENTS, check_pieces, shown
from longca.masks.bounds import check_bounds
from longca.masks.forms import Form
from longca.masks.mask import Mask, check_seqlen
from longca.masks.slices import UNBOUNDED

__all__ = ["FACTORS", "PATTERNS", "Factor", "Pattern", "build", "check_factor_names", "get_pattern", "register"]


@dataclass(frozen=True)
class Factor:
    """One keyword of a pattern.

    Attributes:
        name: The keyword.
        meaning: One line with its meaning and the allowed values.
        check: Function of (value, seqlen) that returns the canonical value, or raises MaskError.
    """

    name: str
    meaning: str
    check: Callable[[Any, int], Any]


def _integer(name: str, least: int, most: int | None = None) -> Callable[[Any, int], int]:
    def check(value: Any, seqlen: int) -> int:
        top = seqlen if most is None else most
        try:
            number = operator.index(value)
        except TypeError:
            raise MaskError(f"{name} is {shown(value)}; give an integer from {least} to {top}") from None
        if isinstance(value, bool) or not least <= number <= top:
            limit = " (the sequence length)" if most is None else ""
            raise MaskError(f"{name} is {shown(value)}; it must be from {least} to {top}{limit}")
        return number

    return check


def _documents(value: Any, seqlen: int) -> tuple[int, ...]:
    try:
        listed = list(islice(value, MAX_DOCUMENTS + 1))
        lengths = np.asarray(listed)
    except (TypeError, ValueError):
        raise MaskError(f"documents is {shown(value)}; give a list of document lengths") from None
    check_pieces(len(listed), "documents or more", "Take fewer and longer documents")
    if not lengths.size or lengths.ndim != 1 or not np.issubdtype(lengths.dtype, np.integer):
        raise MaskError("documents must be a list of at least one integer length")
    short = np.flatnonzero(lengths < 1)
    if len(short):
        raise MaskError(f"document {short[0]} has length {shown(int(lengths[short[0]]))}; each needs at least 1 token")
    total = sum(lengths.tolist())
    if total != seqlen:
        raise MaskError(
            f"documents sum to {shown(total)} tokens, but seqlen is {seqlen}; make the lengths sum to seqlen"
        )
    return tuple(lengths.tolist())


def _boundaries(value: Any, seqlen: int) -> tuple[int, ...]:
    bounds = check_bounds(value, "variable")
    if bounds[-1] != seqlen:
        raise MaskError(f"boundaries end at {bounds[-1]}, but seqlen is {seqlen}; the last boundary must be seqlen")
    return tuple(bounds.tolist())


def _kept(value: Any, seqlen: int) -> float:
    del seqlen
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value <= 1:
        raise MaskError(f"kept is {shown(value)}; the kept ratio must be above 0 and at most 1 (0.2 keeps a fifth)")
    return float(value)


FACTORS = {
    f.name: f
    for f in (
        Factor("documents", "document lengths, each at least 1, that sum to seqlen", _documents),
        Factor(
            "window",
            "how many tokens a query sees on each visible side, from 0",
            _integer("window", 0, 2**30),
        ),
        Factor("prefix", "tokens of the prefix, from 0 to seqlen", _integer("prefix", 0)),
        Factor("block", "tokens a block, from 1", _integer("block", 1, 2**30)),
        Factor(
            "global_tokens",
            "leading tokens that see all tokens and that all tokens see, from 0",
            _integer("global_tokens", 0),
        ),
        Factor("boundaries", "block bounds, strictly ascending from 0 to seqlen", _boundaries),
        Factor("kept", "share of key blocks each query block keeps, in (0, 1]", _kept),
        Factor("heads", "heads with masks of their own, from 1", _integer("heads", 1, 2**16)),
        Factor("seed", "seed of the random scores, from 0", _integer("seed", 0, 2**63 - 1)),
    )
}


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
        parts: The patterns whose intersection it is. Empty for any other pattern.
        size: Queries and keys of its only mask, which is that of a file. None for any other pattern.
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
    parts: tuple[Pattern, ...] = ()
    size: tuple[int, int] | None = None

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
    """A pattern by its name, the intersection of several such as `causal & mask.npy`, or the mask of a file.

    Raises:
        UnknownNameError: There is no such pattern.
        MaskError: The file of a mask cannot be read (`longca.masks.mask_files`).
    """
    if name in PATTERNS:
        return PATTERNS[name]
    if "&" in name:
        return _intersection(tuple(get_pattern(part.strip()) for part in name.split("&")))
    if not Path(name).suffix:
        raise UnknownNameError("mask pattern", name, PATTERNS)
    from longca.masks.mask_files import read_mask

    mask = read_mask(name)

    def make(q: int, k: int) -> Mask:
        if (q, k) != (mask.seqlen_q, mask.seqlen_k):
            raise MaskError(
                f"{name} is a mask of {mask.seqlen_q} × {mask.seqlen_k} tokens, and {q} × {k} were asked for; leave "
                "out the length"
            )
        return mask

    forms = {form: mask.count(form) for form in Form if mask.admits(form)}
    size = mask.seqlen_q, mask.seqlen_k
    return Pattern(name, name, f"{name} shows it", (), make, forms, rectangular=True, size=size)


def _intersection(parts: tuple[Pattern, ...]) -> Pattern:
    """The pattern whose masks show what the masks of all parts show. Parts share the values of their factors."""
    from longca.masks.algebra import intersection

    def make(q: int, k: int, **factors: Any) -> Mask:
        return intersection(*(part.make(q, k, **{name: factors[name] for name in part.factors}) for part in parts))

    forms: dict[Form, int | None] = {}
    for form in (Form.WINDOW, Form.VARLEN, Form.ROW_INTERVALS, Form.COLUMN_INTERVALS, Form.DENSE):
        if all(form in part.forms for part in parts):  # two lists of m and n intervals have at most m + n − 1 in common
            counts = [part.forms[form] for part in parts]
            forms[form] = None if None in counts else 1 + sum(count - 1 for count in counts if count is not None)
    if Form.ROW_INTERVALS in forms:
        forms[Form.LAYERS] = 1 if Form.VARLEN in forms else None
    return Pattern(
        name=" & ".join(part.name for part in parts),
        title=" and ".join(part.title.lower() if at else part.title for at, part in enumerate(parts)),
        summary="; ".join(part.summary for part in parts),
        factors=tuple(dict.fromkeys(name for part in parts for name in part.factors)),
        make=make,
        forms=forms,
        defaults={name: value for part in parts for name, value in part.defaults.items()},
        rectangular=all(part.rectangular for part in parts),
        parts=parts,
        size=next((part.size for part in parts if part.size), None),
    )


def build(pattern: str, seqlen: int, *, seqlen_k: int | None = None, **factors: Any) -> Mask:
    """Builds a mask from explicit factors.

    Args:
        pattern: Name of a pattern, as `get_pattern` takes it.
        seqlen: Number of queries. It is also the number of keys unless seqlen_k is given, or a file has another.
        seqlen_k: Number of keys, for patterns that are defined for Sq ≠ Sk.
        **factors: The pattern's factors. FACTORS gives the meaning of each.

    Raises:
        UnknownNameError: The pattern or a factor is unknown.
        MaskError: A length or factor does not fit, or a factor is missing.
    """
    kind = get_pattern(pattern)
    seqlen_q = check_seqlen(seqlen)
    keys = (kind.size or (0, seqlen_q))[1] if seqlen_k is None else check_seqlen(seqlen_k, "seqlen_k")
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
    mask.pattern, mask.factors = kind.name, checked
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
