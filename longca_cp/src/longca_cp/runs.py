"""Runs: rows of one tensor that go to rows of another, with neighbours put together.

A rank that gathers rows needs runs of them from each owner. Each run is one push, unless there are too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.manifests.strategy import Ranges
from longca.masks.intervals import ragged

__all__ = ["MOST_RUNS", "Arrangement", "Pieces", "Pushes", "Runs", "index_of", "pieces", "slices_of"]

_Ints = NDArray[np.int64]

#: The most runs of rows that are pushed one by one. More runs are packed before, and one push takes them.
MOST_RUNS = 32


@dataclass(frozen=True)
class Pieces:
    """Runs of rows that a rank needs, in ascending order: [runs] each."""

    owner: _Ints  # the rank that holds each run
    held: _Ints  # its first row among the owner's rows
    needed: _Ints  # its first row among the needed rows
    length: _Ints

    def of(self, owner: int) -> Pieces:
        """The runs of one owner."""
        mine = self.owner == owner
        return Pieces(self.owner[mine], self.held[mine], self.needed[mine], self.length[mine])

    @property
    def packed(self) -> _Ints:
        """The first row of each run if the runs lie side by side: [runs]."""
        return np.cumsum(self.length) - self.length


def pieces(shards: Sequence[Ranges], needed: Ranges) -> Pieces:
    """The runs of the needed tokens, each of one owner and contiguous among its rows."""
    flat = np.concatenate([np.array(shard, np.int64).reshape(-1, 2) for shard in shards])
    owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
    sizes = flat[:, 1] - flat[:, 0]
    before = np.cumsum(sizes) - sizes  # rows of all ranks below each shard's range
    first = np.array([before[owner == rank][:1].sum() for rank in range(len(shards))], np.int64)
    order = np.argsort(flat[:, 0], kind="stable")
    starts, owner, held = flat[order, 0], owner[order], (before - first[owner])[order]
    wanted = np.array(needed, np.int64).reshape(-1, 2)
    bounds = np.unique(np.concatenate([flat.ravel(), wanted.ravel()]))
    begin, length = bounds[:-1], np.diff(bounds)
    at = np.searchsorted(wanted[:, 0], begin, side="right") - 1
    inside = (at >= 0) & (begin < wanted[at, 1]) if len(wanted) else np.zeros(len(begin), np.bool_)
    begin, length = begin[inside], length[inside]
    shard = np.searchsorted(starts, begin, side="right") - 1
    held = held[shard] + begin - starts[shard]
    place = np.cumsum(length) - length
    first = _apart(owner[shard], held - place)
    return Pieces(owner[shard][first], held[first], place[first], _lengths(length, first))


def _apart(*constant: _Ints) -> _Ints:
    """The first of each group of neighbours. Neighbours are in one group if they have equal constants."""
    apart = np.zeros(len(constant[0]), np.bool_)
    apart[:1] = True
    for each in constant:
        apart[1:] |= each[1:] != each[:-1]
    return np.flatnonzero(apart)


def _lengths(length: _Ints, first: _Ints) -> _Ints:
    return np.add.reduceat(length, first) if len(first) else length


class Runs:
    """Runs of rows of one tensor, and their places in another: the first rows and the lengths, [runs] each."""

    def __init__(self, source: _Ints, into: _Ints, length: _Ints) -> None:
        before = np.cumsum(length) - length
        first = _apart(source - before, into - before)
        self.source, self.into, self.length = source[first], into[first], _lengths(length, first)

    def slices(self) -> list[tuple[slice, slice]]:
        """The rows and the places of each run."""
        return list(zip(slices_of(self.source, self.length), slices_of(self.into, self.length), strict=True))


class Pushes:
    """The pushes of some runs. Too many runs, whose places are side by side, are packed for one push (`packs`)."""

    def __init__(self, runs: Runs, device: torch.device) -> None:
        self._slices, self._rows = runs.slices(), None
        self.packs = len(self._slices) > MOST_RUNS
        if self.packs:
            start = int(runs.into[0])
            self._slices = [(slice(0), slice(start, start + int(runs.length.sum())))]
            self._rows = index_of(runs.source, runs.length, device)

    def __call__(self, into: Tensor, source: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of places and rows: [rows, ...] each."""
        for rows, place in self._slices:
            yield into[place], source[rows] if self._rows is None else source.index_select(0, self._rows)


def slices_of(first: _Ints, length: _Ints) -> list[slice]:
    """The rows of some runs."""
    return [slice(start, stop) for start, stop in zip(first.tolist(), (first + length).tolist(), strict=True)]


def index_of(first: _Ints, length: _Ints, device: torch.device) -> Tensor:
    """The rows of some runs, one after another."""
    return torch.from_numpy(ragged(first, length)[1]).to(device)


class Arrangement:
    """The places of a rank's needed rows in its slot: in ascending order, or packed owner by owner."""

    def __init__(self, needed: Pieces, ranks: int) -> None:
        self._needed, self._places = needed, needed.needed
        self._is_packed = bool((np.bincount(needed.owner, minlength=ranks) > MOST_RUNS).any())
        if self._is_packed:
            by_owner = np.argsort(needed.owner, kind="stable")
            self._places = np.empty_like(needed.needed)
            self._places[by_owner] = np.cumsum(needed.length[by_owner]) - needed.length[by_owner]

    def runs(self, owner: int) -> Runs:
        """The rows of an owner, and their places."""
        mine = self._needed.owner == owner
        return Runs(self._needed.held[mine], self._places[mine], self._needed.length[mine])

    def order(self, device: torch.device) -> Tensor | None:
        """The place of each row. None if places are in ascending order."""
        return index_of(self._places, self._needed.length, device) if self._is_packed else None
