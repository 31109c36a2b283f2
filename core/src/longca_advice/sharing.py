"""Sharing: the way to share a problem among ranks that is predicted to be fastest, and its kernels.

A first estimate weighs all ways by the tiles of the whole mask. The ways that look about as fast as the fastest are
then weighed exactly, from the cut of each step, if the kernels take every step. So most ways are never cut, and no
kernel is asked whether it takes their steps. Ranks are on one host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice, product

from longca.errors import UnsupportedError
from longca.manifests.pairs import split
from longca_advice.asked import Asked
from longca_advice.ways import Role, Way, predict_together
from longca_advice.weighed import Weighed
from longca_advice.weighing import roles_of, weigh

__all__ = ["quickest"]

#: Limits for the ways that are weighed exactly: how much slower than the fastest they may look, and their number. The
#: first way of a strategy that has none of them is weighed too: if it is less of an extrapolation, it may rank first.
_ALIKE, _WAYS = 1.2, 3

#: Reasons against a kernel that hold for every mask.
_ABSENT = frozenset({"device", "dtype", "head_dim", "package"})

#: Kernels of each role that are candidates for a way, the fastest first.
_KERNELS = 2


def quickest(asked: Asked, ways: Sequence[Way], kernel: str | None = None) -> list[Weighed]:
    """The way that is predicted to be fastest, and the other ways that were weighed exactly, the fastest first.

    Ways that fit into the memory come before ways that do not.

    Args:
        asked: The question. The kernels to choose from are its kernels.
        ways: The ways to share it.
        kernel: The kernel or pair to take, or None to choose it too.

    Returns:
        The ways. Empty if evidence predicts the time of no valid way.
    """
    wanted = _known(asked, kernel)
    if not wanted:
        return []
    predict_together(ways)
    if kernel is None:
        weighed = [*_exactly(ways, wanted, lambda way: _promising(way, wanted))]
        limit = _ALIKE * min((one.seconds for one in weighed), default=float("inf"))
        known = [way for way in ways if any(way.measured(direction) for direction in asked.directions)]
        weighed += _exactly(known, wanted, lambda way: _measured_names(way, wanted), limit)
    else:
        weighed = [*_exactly(ways, (), lambda way: [wanted])]
    unlike = {(one.way, one.kernels): one for one in weighed}.values()
    # The first of several equally fast ways is taken.
    place = {way: index for index, way in enumerate(ways)}
    found = sorted(unlike, key=lambda one: (float(f"{one.ranked:.6g}"), place[one.way]))
    first = next((one for one in found if one.fits), next(iter(found), None))
    return [] if first is None else [first, *(one for one in found if one is not first)]


def _known(asked: Asked, kernel: str | None) -> tuple[str, ...]:
    """The kernel of each direction if one is named, else all candidates. Empty without evidence."""
    if kernel is not None:
        halves = split(kernel) or (kernel, kernel)
        names = halves[: len(asked.directions)]
        each = zip(names, asked.directions, strict=True)
        return names if all(asked.costs.knows(asked.key(*one)) for one in each) else ()
    return tuple(
        name
        for name in asked.kernels
        if any(asked.costs.knows(asked.key(name, direction)) for direction in asked.directions)
        and not _ABSENT & {reason.code for reason in asked.resolve(name, asked.problem).reasons}
    )


def _exactly(
    ways: Sequence[Way],
    kernels: Sequence[str],
    names_of: Callable[[Way], Sequence[tuple[str, ...]]],
    limit: float = float("inf"),
) -> Iterator[Weighed]:
    """The valid kernels of the ways that look quickest, weighed exactly.

    Whether kernels take the steps of a way is asked once the way's least time by any kernels is the least of all times.

    Args:
        ways: The ways.
        kernels: All kernels that a way may have, for its least time. Empty to look at every way.
        names_of: The kernels of each direction that are likely to be fastest for a way.
        limit: The time from which on ways are not weighed.
    """
    cut = set[Way]()
    heap: list[tuple[float, int, int, Way | Weighed]] = []
    for place, way in enumerate(ways):
        if (least := _least(way, kernels)) is not None:
            heappush(heap, (least, place, -1, way))
    while heap and heap[0][0] <= limit:
        _, place, _, one = heappop(heap)
        way = one if isinstance(one, Way) else one.way
        if len(cut) >= _WAYS and way not in cut and way.strategy in {other.strategy for other in cut}:
            continue
        if isinstance(one, Way):
            for turn, names in enumerate(names_of(way)):
                if (rough := _weighed(way, names, exactly=False)) is not None:
                    heappush(heap, (rough.seconds, place, turn, rough))
            continue
        valid = all(_takes(way, *each) for each in zip(one.kernels, roles_of(one.kernels), strict=True))
        if valid and (found := _weighed(way, one.kernels)) is not None:
            limit = min(limit, _ALIKE * one.seconds)
            cut.add(way)
            yield found


def _least(way: Way, kernels: Sequence[str]) -> float | None:
    """A bound of the time of a way from below, whichever of some kernels compute its steps. None without a time."""
    try:
        each = [way.least(kernels, direction) for direction in way.asked.directions] if kernels else [0.0]
    except UnsupportedError:
        return None
    known = [seconds for seconds in each if seconds is not None]
    return sum(known) if len(known) == len(each) else None


def _measured_names(way: Way, kernels: Sequence[str]) -> list[tuple[str, ...]]:
    """The promising kernels of a way by which one direction of this very call was measured."""
    each = [way.measured(direction) for direction in way.asked.directions]
    names = _promising(way, kernels)
    return [one for one in names if any(kernel in known for kernel, known in zip(one, each, strict=True))]


def _promising(way: Way, kernels: Sequence[str]) -> list[tuple[str, ...]]:
    """The kernels of all directions that are likely to be fastest, among the kernels that take every step."""
    directions = way.asked.directions
    if not way.asked.has_own_capability:
        alone: Role = "both" if len(directions) > 1 else "forward"
        return [(name,) * len(directions) for name in _first(way, kernels, alone, directions)]
    if len(directions) == 1:
        names = dict.fromkeys([*_first(way, kernels, "forward", directions), *_measured(way, kernels, "forward")])
        return [(name,) for name in names]
    measured = [_measured(way, kernels, direction) for direction in directions]
    before = [*_first(way, kernels, "forward", ("forward",)), *measured[0]]
    after = [*_first(way, kernels, "backward", ("backward",)), *measured[1]]
    singles = [(name, name) for name in (*_first(way, kernels, "both", directions), *measured[0], *measured[1])]
    pairs = [pair for pair in product(before, after) if pair[0] != pair[1]]
    return list(dict.fromkeys([*singles, *pairs]))


def _measured(way: Way, kernels: Sequence[str], direction: str) -> list[str]:
    """The kernels by which this very call was measured in a direction."""
    return [name for name in way.measured(direction) if name in kernels]


def _first(way: Way, kernels: Sequence[str], role: Role, directions: Sequence[str]) -> list[str]:
    """The first valid kernels by the time that the slowest rank computes."""
    seconds: dict[str, float] = {}
    for name in kernels:
        sums = [each for direction in directions if (each := way.slowest(name, direction)) is not None]
        if len(sums) == len(directions):
            seconds[name] = sum(sums)
    ranked = sorted(seconds, key=lambda name: seconds[name])
    return list(islice((name for name in ranked if _takes(way, name, role)), _KERNELS))


def _takes(way: Way, kernel: str, role: Role) -> bool:
    """Whether a kernel takes every step in a role."""
    return way.asked.resolve(kernel, way.whole(role), way.layout).valid


def _weighed(way: Way, kernels: Sequence[str], exactly: bool = True) -> Weighed | None:
    """A way with its kernels, or None if the time of a kernel or of a collective is unknown."""
    try:
        return weigh(way, kernels, exactly)
    except UnsupportedError:
        return None
