"""Weighing: the time of a way with a kernel for each direction, or with the kernels of a mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from longca.manifests.mixes import is_mix, kernels_of, mix_of
from longca.manifests.pairs import join
from longca_advice.ways import Role, Way
from longca_advice.weighed import Weighed

__all__ = ["mix_for", "roles_of", "weigh"]

#: The roles of the kernels of a pair.
_HALVES: tuple[Role, Role] = ("forward", "backward")

#: Kernels of each direction in a mix, beside those of few forms.
_KERNELS = 2


def roles_of(kernels: Sequence[str]) -> tuple[Role, ...]:
    """The role of each direction's kernel."""
    return ("both", "both") if len(set(kernels)) < len(kernels) else _HALVES[: len(kernels)]


def mix_for(way: Way, kernels: Sequence[str]) -> str | None:
    """The fastest kernels of each direction as a mix, or None if steps are alike or too many to be weighed exactly.

    Args:
        way: The way.
        kernels: Kernels to choose from.
    """
    found: set[str] = set()
    if len(way.pairs.parts) == 1 or not way.cuts_all:
        return None
    for direction in way.asked.directions:
        known = [name for name in kernels if way.asked.costs.knows(way.asked.key(name, direction))]
        seconds = {name: way.slowest(name, direction) for name in known}
        general = sorted((each, name) for name, each in seconds.items() if each is not None)
        # A kernel of few forms is not known roughly, and may be the fastest on the steps that it takes.
        few = {name for name, each in seconds.items() if each is None and way.may_take(name, direction)}
        found |= few | {name for _, name in general[:_KERNELS]}
    return mix_of(name for name in kernels if name in found) if len(found) > 1 else None


def weigh(way: Way, kernels: Sequence[str], exactly: bool = True) -> Weighed | None:
    """A way with a kernel for each direction, or None if a time is unknown.

    Args:
        way: The way.
        kernels: The kernel of each direction. Each one takes every step, if the way is weighed exactly. A mix stands
            for both directions. It is narrowed to the kernels that take a step.
        exactly: Whether to weigh the cut of each step, or the tiles of the whole mask.

    Raises:
        UnsupportedError: The time of a collective is unknown.
    """
    if is_mix(kernels[0]):
        return _weigh_mix(way, kernels_of(kernels[0]), exactly)
    each = zip(kernels, way.asked.directions, roles_of(kernels), strict=True)
    found = [way.timeline(kernel, direction, role if exactly else None) for kernel, direction, role in each]
    known = tuple(timeline for timeline in found if timeline is not None)
    return Weighed(way, tuple(kernels), known) if len(known) == len(found) else None


def _weigh_mix(way: Way, kernels: Sequence[str], exactly: bool) -> Weighed | None:
    """A way whose steps take the fastest of some kernels, or None if no kernel takes some step."""
    found = _of_each(way, kernels, exactly)
    if not found:
        return None
    names, table = list(found), np.stack(list(found.values()))
    best = table.sum(axis=1).argmin(axis=0)
    seconds = np.take_along_axis(table, best[None, None], axis=0)[0]
    if not np.isfinite(seconds).all():
        return None
    lines = [way.takes(direction, each) for direction, each in zip(way.asked.directions, seconds, strict=True)]
    known = tuple(line for line in lines if line is not None)
    if len(known) < len(lines):
        return None
    if not exactly:
        return Weighed(way, (mix_of(kernels),) * len(known), known)
    shown = way.pairs.index[(way.pairs.index >= 0) & (way.pairs.seconds(seconds.sum(axis=0)) > 0)]
    steps = Counter(names[index] for index in best[shown].tolist())
    if len(steps) <= 1:
        return Weighed(way, next(iter(steps), names[0]), known)
    used = {name for one in steps for name in one}
    mix = mix_of(name for name in kernels if name in used)
    counted = tuple((join(one[0], one[-1]), count) for one, count in steps.most_common())
    return Weighed(way, (mix,) * len(known), known, counted)


def _of_each(way: Way, kernels: Sequence[str], exactly: bool) -> dict[tuple[str, ...], NDArray[np.float64]]:
    """The seconds of each pair in each direction with a kernel for each direction: [directions, pairs]."""

    @cache
    def seconds(name: str, role: Role, direction: str) -> NDArray[np.float64] | None:
        taken = way.exact(name, role, direction) if exactly else way.rough(name, direction)
        return None if taken is None or np.isinf(taken).all() else taken

    found: dict[tuple[str, ...], NDArray[np.float64]] = {}
    for names in product(kernels, repeat=len(way.asked.directions)):
        each = [seconds(*one) for one in zip(names, roles_of(names), way.asked.directions, strict=True)]
        known = [one for one in each if one is not None]
        if len(known) == len(each):
            found[names] = np.stack(known)
    return found
