"""Shared layouts: one placement for layers of several masks, each with a layout of its own. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from longca.errors import RequestError, UnsupportedError
from longca.manifests import Layout, Problem
from longca.manifests.strategy import SharedPlacement
from longca.masks import Mask
from longca.plugins import Registry

__all__ = ["WeightedProblems", "check_weighted", "shared_layouts"]

#: The problem of each mask with its weight. The problems differ in their masks alone.
WeightedProblems = Sequence[tuple[Problem, float]]


def check_weighted(masks: Sequence[Any]) -> tuple[tuple[Mask, float], ...]:
    """The masks that share a placement, with their weights.

    Raises:
        RequestError: No masks, anything else than pairs of a mask and a weight, a weight that is not a finite number
            above 0, or masks of different lengths.
    """
    ask = "give [(mask, weight), ...], such as [(window, 5), (full, 1)]"
    if not masks:
        raise RequestError(f"a placement was to be shared by no masks; {ask}")
    for pair in masks:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], Mask):
            given = type(pair).__name__
            raise RequestError(f"a placement was to be shared by several masks, and one entry is a {given}; {ask}")
        weight = pair[1]
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise RequestError(
                f"the weight of {pair[0].label} is {weight!r}; give a finite number above 0, such as the number of "
                "layers with this mask"
            )
    sizes = dict.fromkeys(f"{mask.label} has {mask.seqlen_q} × {mask.seqlen_k}" for mask, _ in masks)
    if len({(mask.seqlen_q, mask.seqlen_k) for mask, _ in masks}) > 1:
        raise RequestError(
            f"masks that share a placement have one length, and these differ: {'; '.join(sizes)} queries × keys. "
            "Give masks of the same tokens, and lay other masks out by themselves"
        )
    return tuple((mask, float(weight)) for mask, weight in masks)


def shared_layouts(
    registry: Registry, weighted: WeightedProblems, strategy: str, sizes: Mapping[str, int], placement: str
) -> tuple[Layout, ...]:
    """The layout of each problem's mask under a strategy and a placement, with the same shards in all of them.

    Raises:
        UnsupportedError: The strategy or the placement does not take one of the masks. Or the strategy places the masks
            one by one.
        UnknownNameError: Nobody provides the strategy or its placement.
    """
    if len(weighted) == 1:
        return (registry.layout(strategy, weighted[0][0], sizes, placement),)
    shared = SharedPlacement(placement, [(problem.concrete_mask, weight) for problem, weight in weighted])
    layouts = []
    for problem, _ in weighted:
        try:
            layouts.append(registry.layout(strategy, problem, sizes, shared))
        except UnsupportedError as error:
            label = problem.concrete_mask.label
            raise UnsupportedError(
                f"{placement} of {strategy} does not suit all masks. With {label}: {error}"
            ) from None
    if any(layout.shards != layouts[0].shards for layout in layouts):
        raise UnsupportedError(
            f"{strategy} places the tokens of each of these masks differently when placed {placement}, because it does "
            "not know shared placements. Take contiguous or zigzag if it has them, or another strategy"
        )
    return tuple(layouts)
