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

__all__ = ["DTYPE", "HEADS", "HEAD_DIM", "problem_suite"]

#: The default shape of a problem.
HEADS, HEAD_DIM, DTYPE = "32:8", 128, "bfloat16"

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def problem_suite(
    pattern: str,
    *,
    seqlens: Sequence[int],
    factors: Mapping[str, Any] = _NOTHING,
    heads: Sequence[str] = (HEADS,),
    head_dims: Sequence[int] = (HEAD_DIM,),
    dtypes: Sequence[str] = (DTYPE,),
    directions: Sequence[str] = ("forward", "backward"),
    kernels: Sequence[str] = ("*",),
    pairs: bool = False,
    lengths: str = "auto",
    seeds: Sequence[int] = (0,),
    strategies: Sequence[str] = (),
    placements: Sequence[str] = ("auto",),
    transports: Sequence[str] = ("auto",),
    meshes: Mapping[str, Sequence[str]] = _NOTHING,
) -> Suite:
    """A suite of one sweep over one mask pattern, with nothing beyond the given arguments.

    The suite has the pattern's name and version 1. The same arguments give the same digest, so that their run can be
    resumed. Every argument but the first has the meaning of `longca_bench.suites.suite.Sweep`.

    Args:
        pattern: Name of the mask pattern.
        seqlens: Tokens of all ranks together.
        factors: Mask factors with given values, by name. The others are drawn.
        heads: Query heads and KV heads, such as `32:8`.
        head_dims: Head dimensions.
        dtypes: Data types.
        directions: `forward`, `backward`, or both.
        kernels: Kernels, or `*` for all.
        pairs: Whether all valid pairs of the kernels are added.
        lengths: The source of document lengths.
        seeds: Seeds of masks and inputs.
        strategies: Context-parallel strategies, or `*` for all. Empty for one device.
        placements: How strategies place tokens on ranks.
        transports: How strategies move tensors between ranks.
        meshes: Ranks along each axis, by strategy.

    Raises:
        UnknownNameError: Nobody provides the pattern, or it has no such factor.
        MaskError: A length or a factor that does not fit.
        RequestError: Another value that a suite cannot have.
    """
    check_factor_names(pattern, factors)
    for seqlen in seqlens:
        for name, value in factors.items():
            FACTORS[name].check(value, check_seqlen(seqlen))
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in factors.items()}
    sweep = {
        "patterns": [pattern],
        "kernels": list(kernels),
        "pairs": pairs,
        "seqlens": list(seqlens),
        "lengths": lengths,
        "seeds": list(seeds),
        "heads": list(heads),
        "head_dims": list(head_dims),
        "dtypes": list(dtypes),
        "directions": list(directions),
        "factors": {pattern: plain} if plain else {},
        "placements": list(placements),
        "transports": list(transports),
        "meshes": {name: list(shapes) for name, shapes in meshes.items()},
        **({"strategies": list(strategies)} if strategies else {}),
    }
    # A plugin may give its pattern a name that no suite can have.
    name = pattern if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", pattern) else "one_problem"
    try:
        return Suite.model_validate({"name": name, "version": 1, "sweep": [sweep]})
    except ValidationError as error:
        said = "; ".join(dict.fromkeys(complaint for _, complaint in complaints(error)))
        raise RequestError(f"one problem of {pattern}: {said}") from None
