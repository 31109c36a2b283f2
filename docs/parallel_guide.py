"""Which strategy when: the best of each mask, length and number of ranks, and expectations held against the records.

Forward and backward count together, as in training: a strategy's share of the kernel alone is the time of both there
over the time of both here. Where only one of them was measured, it is that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from measured_page import table
from parallel_ways import DIRECTIONS, Setting, Way, of_alone

from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import tokens

_RINGS = ("ring_p2p", "ring_all_gather", "usp", "loongtrain")
#: How much longer than the quickest placement's is still as quick.
_AS_QUICK = 1.02


@dataclass(frozen=True)
class Place:
    """A setting's mask.

    Attributes:
        setting: The setting.
        mask: The mask's name.
    """

    setting: Setting
    mask: str

    def directions(self) -> tuple[str, ...]:
        """Those of which anything was measured."""
        return tuple(d for d in DIRECTIONS if any(r.status == "ok" for r in self.setting.of(self.mask, d)))

    def seconds(self, way: Way, directions: Sequence[str] | None = None) -> float | None:
        """How long a way takes, in units of the kernel alone where that is known; None where a direction lacks."""
        total = 0.0
        for direction in self.directions() if directions is None else directions:
            share = self.setting.median(of_alone, self.mask, direction, way)
            alone = self.setting.median(lambda record: record.alone_seconds, self.mask, direction)
            taken = self.setting.median(_seconds, self.mask, direction, way)
            if taken is None:
                return None
            total += alone / share if alone and share else taken
        return total or None

    def share(self, way: Way) -> float | None:
        """The time of the kernel alone over a way's."""
        alone = [self.setting.median(lambda r: r.alone_seconds, self.mask, d) for d in self.directions()]
        taken = self.seconds(way)
        return None if taken is None or None in alone else sum(each or 0.0 for each in alone) / taken

    def ranked(self, directions: Sequence[str] | None = None) -> list[tuple[float, Way]]:
        """What each way takes, the quickest first; without those that are ulysses under another name."""
        ways = (way for way in self.setting.ways if not way.has_no_ring)
        found = [(self.seconds(way, directions), way) for way in ways]
        return sorted(((taken, way) for taken, way in found if taken is not None), key=lambda pair: pair[0])

    def best(self, strategy: str, directions: Sequence[str] | None = None) -> float | None:
        """What a strategy takes in its quickest placement and mesh."""
        return next((taken for taken, way in self.ranked(directions) if way.strategy == strategy), None)


def _seconds(record: Record) -> float | None:
    return record.median if record.status == "ok" else None


def places(found: Iterable[Setting]) -> list[Place]:
    """Every mask of every setting of which something was measured."""
    return [place for s in found for mask in s.masks if (place := Place(s, mask)).ranked()]


def best(found: Sequence[Setting]) -> str:
    """The quickest strategy and placement of each mask, and the quickest other strategy."""
    heads = ["mask", "kernel", "ranks", "tokens", "quickest", "placement", "of alone", "then", "placement", "takes"]
    body = []
    for place in places(found):
        (least, first), *others = place.ranked()
        share = place.share(first)
        line = [
            f"`{place.mask}`", f"`{place.setting.kernel}`", str(place.setting.ranks), tokens(place.setting.seqlen),
            first.words, f"`{first.placement}`", "–" if share is None else f"{share:.2f}",
        ]  # fmt: skip
        second = next(((taken, way) for taken, way in others if way.strategy != first.strategy), None)
        if second is None:
            line += ["–", "", ""]
        else:
            taken, way = second
            line += [way.words, f"`{way.placement}`", f"{taken / least:.2f}×"]
        body.append(line)
    return table(heads, body, left=(0, 1, 4, 5, 7, 8)) if body else "*Nothing was measured.*"


#: Of each place where an expectation says something: whether it is so.
_Verdicts = Iterator[bool]


@dataclass(frozen=True)
class Expectation:
    """Something that one would expect, to be held against the records.

    Attributes:
        words: What.
        verdicts: Whether it is so, for every place where it says something.
    """

    words: str
    verdicts: Callable[[Sequence[Place]], _Verdicts]


def _fastest(strategy: str) -> Callable[[Sequence[Place]], _Verdicts]:
    def verdicts(found: Sequence[Place]) -> _Verdicts:
        for place in found:
            ranked = place.ranked()
            if len({way.strategy for _, way in ranked}) > 1 and any(way.strategy == strategy for _, way in ranked):
                yield ranked[0][1].strategy == strategy

    return verdicts


def _quicker(one: str, other: str, directions: Sequence[str] | None = None) -> Callable[[Sequence[Place]], _Verdicts]:
    def verdicts(found: Sequence[Place]) -> _Verdicts:
        for place in found:
            both = place.best(one, directions), place.best(other, directions)
            if both[0] is not None and both[1] is not None:
                yield both[0] < both[1]

    return verdicts


def _shared_out(found: Sequence[Place]) -> _Verdicts:
    """Of causal masks, whether another placement is quicker than contiguous."""
    for place in (place for place in found if place.mask == "causal"):
        for strategy in _RINGS:
            taken = {way.placement: seconds for seconds, way in reversed(place.ranked()) if way.strategy == strategy}
            others = [seconds for placement, seconds in taken.items() if placement != "contiguous"]
            if "contiguous" in taken and others:
                yield min(others) < taken["contiguous"]


def _auto_is_quick(found: Sequence[Place]) -> _Verdicts:
    """Of strategies with several placements measured, whether `auto` took one that is as quick as any."""
    for place in found:
        for strategy, mesh in dict.fromkeys((way.strategy, way.mesh) for way in place.setting.ways):
            ranked = [(s, way) for s, way in place.ranked() if (way.strategy, way.mesh) == (strategy, mesh)]
            took = [
                seconds
                for seconds, way in ranked
                if any(place.setting.chosen(place.mask, direction, way) for direction in place.directions())
            ]
            if len(ranked) > 1 and took:
                yield took[0] <= _AS_QUICK * ranked[0][0]


def _longer_is_nearer(found: Sequence[Place]) -> _Verdicts:
    """Of lengths next to one another, whether each strategy comes nearer to the kernel alone on the longer one."""
    shares: dict[tuple[str, int, str, str], dict[int, float]] = {}
    for place in found:
        for _, way in reversed(place.ranked()):
            if (share := place.share(way)) is not None:
                key = place.setting.kernel, place.setting.ranks, place.mask, way.strategy
                shares.setdefault(key, {})[place.setting.seqlen] = share
    for by_length in shares.values():
        lengths = sorted(by_length)
        yield from (by_length[long] > by_length[short] for short, long in pairwise(lengths))


def _hides(strategy: str) -> Callable[[Sequence[Place]], _Verdicts]:
    def verdicts(found: Sequence[Place]) -> _Verdicts:
        for place in found:
            for direction in place.directions():
                records = [r for r in place.setting.of(place.mask, direction) if r.strategy == strategy]
                shares = [record.hidden for record in records if record.status == "ok" and record.hidden is not None]
                if shares:
                    yield max(shares) > 1 / 2

    return verdicts


EXPECTATIONS = (
    Expectation("`ulysses` is the quickest of all", _fastest("ulysses")),
    Expectation("`ring_all_gather` is quicker than `ring_p2p`", _quicker("ring_all_gather", "ring_p2p")),
    Expectation("`usp` is quicker than `ring_p2p`", _quicker("usp", "ring_p2p")),
    Expectation("`usp` is quicker than `ulysses`", _quicker("usp", "ulysses")),
    Expectation("`loongtrain` is quicker than `usp` in the forward", _quicker("loongtrain", "usp", ["forward"])),
    Expectation("`loongtrain` is quicker than `usp` in the backward", _quicker("loongtrain", "usp", ["backward"])),
    Expectation("on a causal mask some placement is quicker than `contiguous`", _shared_out),
    Expectation(f"what `auto` took is within {_AS_QUICK - 1:.0%} of the quickest placement", _auto_is_quick),
    Expectation("the longer sequence comes nearer to the kernel alone", _longer_is_nearer),
    Expectation("`ring_p2p` hides more than half of its communication", _hides("ring_p2p")),
    Expectation("`ulysses` hides more than half of its communication", _hides("ulysses")),
)


def expectations(found: Sequence[Setting]) -> str:
    """In how many of the cases that were measured each expectation holds."""
    where = places(found)
    body = []
    for each in EXPECTATIONS:
        verdicts = list(each.verdicts(where))
        body.append([each.words, f"{sum(verdicts)} of {len(verdicts)}" if verdicts else "not measured"])
    return table(["expected", "holds in"], body)
