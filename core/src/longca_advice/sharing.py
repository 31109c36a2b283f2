"""Sharing: the way to share a problem among ranks that is predicted to be fastest, and its kernels.

A first estimate weighs all ways by the tiles of the whole mask. The ways that look about as fast as the fastest are
then weighed exactly, from the cut of each step, if the kernels take every step. Ranks are on one host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca.manifests.pairs import join, split
from longca_advice.asked import Asked
from longca_advice.calls import StrategyCall
from longca_advice.choices import Proof
from longca_advice.kernels import proof_of
from longca_advice.memory import rank_bytes
from longca_advice.ways import Role, Way, of_role
from longca_advice.weighed import known_of, span

__all__ = ["Shared", "quickest"]

#: Limits for the ways that are weighed exactly: how much slower than the fastest they may look, and their number.
_ALIKE, _WAYS = 1.2, 3

#: The roles of the kernels of a pair.
_HALVES: tuple[Role, Role] = ("forward", "backward")

#: Reasons against a kernel that hold for every mask.
_ABSENT = frozenset({"device", "dtype", "head_dim", "package"})

#: Kernels of each role that are candidates for a way, the fastest first.
_KERNELS = 2


@dataclass(frozen=True)
class Shared:
    """A way to share a problem with its kernels, and its prediction.

    Attributes:
        way: The way.
        kernels: The kernel of each direction.
        seconds: The predicted time of all directions.
        others: The other ways that were weighed exactly, the fastest first.
    """

    way: Way
    kernels: tuple[str, ...]
    seconds: float
    others: tuple[Shared, ...] = ()

    @property
    def kernel(self) -> str:
        """The name of the kernel, or of the pair."""
        return join(self.kernels[0], self.kernels[-1])

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval that holds the time with 90 %."""
        low, high = span(known_of(self.way, self.kernels))
        return self.seconds * low, self.seconds * high

    @cached_property
    def proof(self) -> Proof:
        """The evidence behind the prediction."""
        known = known_of(self.way, self.kernels)
        return proof_of(known) if known else Proof(0, "")

    def fits(self) -> bool:
        """Whether the rank that needs most has the memory, as far as it is known."""
        way, asked = self.way, self.way.asked
        if asked.capacity is None:
            return True
        backward = self.kernels[1] if asked.training else None
        cuda = asked.problem.device.kind == "cuda"
        about = way.strategy, way.sizes, way.layout, asked.training, cuda, asked.anywhere
        return asked.capacity.fits(rank_bytes(asked.registry, asked.problem, self.kernels[0], backward, *about).total)


def quickest(asked: Asked, ways: Iterable[Way], kernel: str | None = None) -> Shared | None:
    """The way that is predicted to be fastest. Ways that fit into the memory come before ways that do not.

    Args:
        asked: The question. The kernels to choose from are its kernels.
        ways: The ways to share it.
        kernel: The kernel or pair to take, or None to choose it too.

    Returns:
        The fastest way, or None if evidence predicts the time of no valid way.
    """
    wanted = _known(asked, kernel)
    if not wanted:
        return None
    scales = [_Scale(way) for way in ways]
    all_names = ([wanted] if kernel is not None else scale.promising(wanted) for scale in scales)
    rough = [
        (seconds, scale, names)
        for scale, contenders in zip(scales, all_names, strict=True)
        for names in contenders
        if (seconds := scale.total(names, exactly=False)) is not None
    ]
    # The first of several equally fast ways is taken.
    place = {scale.way: index for index, scale in enumerate(scales)}
    weighed = _exactly(sorted(rough, key=lambda one: one[0]))
    found = sorted(weighed, key=lambda one: (float(f"{one.seconds:.6g}"), place[one.way]))
    first = next((one for one in found if one.fits()), next(iter(found), None))
    if first is None:
        return None
    others = tuple(one for one in found if one is not first)
    return Shared(first.way, first.kernels, first.seconds, others)


def _known(asked: Asked, kernel: str | None) -> tuple[str, ...]:
    """The kernel of each direction if one is named, else all candidates. Empty without evidence."""
    if kernel is not None:
        halves = split(kernel) or (kernel, kernel)
        names = halves[: len(asked.directions)]
        keys = (asked.key(name, direction) for name, direction in zip(names, asked.directions, strict=True))
        return names if all(asked.costs.knows(key) for key in keys) else ()
    return tuple(
        name
        for name in asked.kernels
        if any(asked.costs.knows(asked.key(name, direction)) for direction in asked.directions)
        and not _ABSENT & {reason.code for reason in asked.resolve(name, asked.problem).reasons}
    )


def _exactly(rough: Sequence[tuple[float, _Scale, tuple[str, ...]]]) -> Iterator[Shared]:
    """The valid kernels of the ways that look quickest, weighed exactly."""
    limit, cut = float("inf"), set[_Scale]()
    for total, scale, names in rough:
        if total > limit:
            return
        if len(cut) == _WAYS and scale not in cut:
            continue
        if scale.takes(names) and (seconds := scale.total(names, exactly=True)) is not None:
            limit = min(limit, _ALIKE * total)
            cut.add(scale)
            yield Shared(scale.way, names, seconds)


class _Scale:
    """The times of kernels on one way, each predicted once.

    Args:
        way: The way.
    """

    def __init__(self, way: Way) -> None:
        self.way = way
        self._seconds: dict[tuple[str, Role, str, bool], float | None] = {}
        self._valid: dict[tuple[str, Role], bool] = {}

    def total(self, names: tuple[str, ...], exactly: bool) -> float | None:
        """The seconds of all directions by a kernel for each, or None if a time is unknown."""
        directions = self.way.asked.directions
        parts = [
            self._direction(name, role, direction, exactly)
            for name, role, direction in zip(names, _roles(names), directions, strict=True)
        ]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def takes(self, names: tuple[str, ...]) -> bool:
        """Whether the kernels take every step."""
        return all(self._takes(name, role) for name, role in zip(names, _roles(names), strict=True))

    def promising(self, kernels: Sequence[str]) -> list[tuple[str, ...]]:
        """The kernels of all directions that are likely to be fastest, among the kernels that take every step."""
        directions = self.way.asked.directions
        if len(directions) == 1:
            return [(name,) for name in self._first(kernels, "forward", directions)]
        singles = [(name, name) for name in self._first(kernels, "both", directions)]
        before, after = (self._first(kernels, role, (role,)) for role in _HALVES)
        return [*singles, *(pair for pair in product(before, after) if pair[0] != pair[1])]

    def _first(self, kernels: Sequence[str], role: Role, directions: Sequence[str]) -> list[str]:
        """The first valid kernels by the time that the slowest rank computes."""
        seconds: dict[str, float] = {}
        for name in kernels:
            taken = [self.way.rough(name, direction) for direction in directions]
            sums = [float(self.way.pairs.seconds(each).sum(1).max()) for each in taken if each is not None]
            if len(sums) == len(directions):
                seconds[name] = sum(sums)
        ranked = sorted(seconds, key=lambda name: seconds[name])
        return list(islice((name for name in ranked if self._takes(name, role)), _KERNELS))

    def _takes(self, kernel: str, role: Role) -> bool:
        if (kernel, role) not in self._valid:
            asked = self.way.asked
            verdict = asked.resolve(kernel, of_role(asked.problem, role), self.way.layout)
            self._valid[kernel, role] = verdict.valid
        return self._valid[kernel, role]

    def _direction(self, kernel: str, role: Role, direction: str, exactly: bool) -> float | None:
        key = kernel, role, direction, exactly
        if key not in self._seconds:
            way, call = self.way, self._calls.get(direction)
            of_pairs = way.exact(kernel, role, direction) if exactly else way.rough(kernel, direction)
            self._seconds[key] = None if call is None or of_pairs is None else _timed(way, call, of_pairs)
        return self._seconds[key]

    @cached_property
    def _calls(self) -> dict[str, StrategyCall | None]:
        return {direction: self.way.call(direction) for direction in self.way.asked.directions}


def _roles(names: tuple[str, ...]) -> tuple[Role, ...]:
    """The role of each direction's kernel."""
    return ("both", "both") if len(set(names)) < len(names) else _HALVES[: len(names)]


def _timed(way: Way, call: StrategyCall, of_pairs: NDArray[np.float64]) -> float | None:
    """The seconds of a call, or None if a link that it needs is unknown."""
    try:
        return call.takes(way.pairs.seconds(of_pairs), way.links.network, way.links.rates).seconds
    except UnsupportedError:
        return None
