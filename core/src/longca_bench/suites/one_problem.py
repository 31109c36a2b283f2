"""One problem as a suite: a mask, shapes, kernels and strategies that were asked for at once, not in a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from longca.errors import RequestError
from longca.masks import FACTORS
from longca.masks.mask import check_seqlen
from longca.masks.patterns import check_factor_names
from longca_bench.suites.suite import Suite, complaints

__all__ = ["problem_suite"]

#: The default shape of a problem.
_SHAPE = {"heads": ["32:8"], "head_dims": [128], "dtypes": ["bfloat16"]}


def problem_suite(
    pattern: str, *, seqlens: Sequence[int], factors: Mapping[str, Any] = MappingProxyType({}), **keys: Any
) -> Suite:
    """A suite of one sweep over one mask pattern, with nothing beyond the given arguments.

    The suite has the pattern's name and version 1. The same arguments give the same digest, so that their run can be
    resumed.

    Args:
        pattern: Name of the mask pattern.
        seqlens: Tokens of all ranks together.
        factors: Mask factors with given values, by name. The others are drawn.
        **keys: Other keys of `longca_bench.suites.suite.Sweep`. The defaults are 32:8 heads of 128 in bfloat16, and
            those of a sweep. An empty value counts as left out.

    Raises:
        UnknownNameError: Nobody provides the pattern, or it has no such factor.
        MaskError: A length or a factor that does not fit.
        RequestError: Another value that a suite cannot have.
    """
    check_factor_names(pattern, factors)
    for seqlen in seqlens:
        for name, value in factors.items():
            FACTORS[name].check(value, check_seqlen(seqlen))
    given = {name: _plain(value) for name, value in keys.items() if value or isinstance(value, float)}
    plain = {name: _plain(value) for name, value in factors.items()}
    sweep = {**_SHAPE, **given, "patterns": [pattern], "seqlens": list(seqlens)}
    sweep |= {"factors": {pattern: plain}} if plain else {}
    # A plugin may give its pattern a name that no suite can have.
    name = pattern if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", pattern) else "one_problem"
    try:
        return Suite.model_validate({"name": name, "version": 1, "sweep": [sweep]})
    except ValidationError as error:
        said = "; ".join(dict.fromkeys(complaint for _, complaint in complaints(error)))
        raise RequestError(f"one problem of {pattern}: {said}") from None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
