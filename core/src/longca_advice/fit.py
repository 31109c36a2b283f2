"""Fits: how long a kernel takes, learnt from measured calls of one kernel in one direction.

A fit is a sum and a correction. The sum is a non-negative combination of the features of `Work`, fitted by least
squares on the relative error. Large errors weigh less (Huber), so that one odd record does not bend it. The correction
is a Gaussian process over the logarithm of the residual: similar calls are off by the same factor. The process also
gives its own uncertainty. Without similar measurements there is no correction, and the interval is wide.

Sources: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23. Rasmussen and Williams, Gaussian
Processes for Machine Learning (2006), algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.masks import Form
from longca_advice.work import TILE, Work

__all__ = ["Call", "Fit", "Prediction", "non_negative", "robust"]

_Floats = NDArray[np.float64]

#: Standard deviations of the correction and of repeated measurements, in logarithms.
_AMPLITUDE, _NOISE = 0.08, 0.02

#: Calls of another path are as far as calls whose coordinates differ by 1.
_OTHER_PATH = 1.0

#: From this factor on, a path counts as other code and is fitted without the other paths.
_IRREGULAR = 1.25

#: With fewer measured calls than this, only the time of a tile is fitted.
_FEW = 4

#: Rounds of a robust fit.
_ROUNDS = 5

#: Seconds that every call takes. Starting a call takes the same time for every problem.
_LEAST = 1e-6

#: Standard deviations on either side of the prediction that hold 90 % of a normal distribution.
_NINETY = 1.645


class Call(NamedTuple):
    """A kernel call: its work for one head, and its heads."""

    work: Work
    heads_q: int
    heads_kv: int

    @property
    def path(self) -> str:
        """The work's path, apart for small blocks and blocks of unequal sizes without groups of heads.

        Some kernels fill a tile with a block's queries of all heads of a group. One head leaves it partly empty.
        """
        form, _, block = self.work.path.partition("/")
        fills_tiles = form != Form.BLOCK_SPARSE or (block.isdigit() and int(block) >= TILE)
        return self.work.path if fills_tiles or self.heads_q != self.heads_kv else f"{self.work.path}/ungrouped"


class Prediction(NamedTuple):
    """Seconds of a call.

    Attributes:
        seconds: The most likely time.
        low: Lower end of the interval that holds the time with 90 %.
        high: Upper end.
    """

    seconds: float
    low: float
    high: float


@dataclass(frozen=True)
class _Sum:
    """A non-negative sum of features, for the calls of some paths."""

    weights: _Floats
    cells: bool

    def seconds(self, calls: Sequence[Call]) -> _Floats:
        return np.maximum(_features(calls, self.cells) @ self.weights, _LEAST)


class Fit:
    """A fit to measured calls.

    Args:
        calls: The calls: at least one.
        seconds: How long each took: above 0.
    """

    def __init__(self, calls: Sequence[Call], seconds: Sequence[float]) -> None:
        self._calls, taken = list(calls), np.array(seconds, np.float64)
        self._paths = [call.path for call in self._calls]
        self._known_paths = np.array(self._paths)
        self._known_works = np.array([call.work.path for call in self._calls])
        self._places = _places(self._calls)
        self._alone: dict[str, _Sum] = {}
        self._common = _fit_sum(self._calls, taken)
        for path in self._irregular(taken):
            mine = [index for index, other in enumerate(self._paths) if other == path]
            self._alone[path] = _fit_sum([self._calls[i] for i in mine], taken[mine], cells=True)
        regular = [index for index, path in enumerate(self._paths) if path not in self._alone]
        if self._alone and regular:
            self._common = _fit_sum([self._calls[i] for i in regular], taken[regular])
        self._known_alone = np.array([path in self._alone for path in self._paths])
        self._residual = np.log(taken / self._sum(self._calls))
        # A call that is off by more than the correction allows is odd. Its neighbours do not follow it.
        odd = np.maximum(np.abs(self._residual) - 3 * _AMPLITUDE, 0)
        covariance = self._covariance(self._places, self._calls) + np.diag(_NOISE**2 + odd**2)
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ self._residual

    def predict(self, calls: Sequence[Call]) -> list[Prediction]:
        """The seconds of some calls."""
        if not calls:
            return []
        shared = self._covariance(_places(calls), calls)
        seconds = self._sum(calls) * np.exp(shared @ self._weights)
        known = np.einsum("ij,jk,ik->i", shared, self._inverse, shared)
        spread = _NINETY * np.sqrt(np.maximum(_AMPLITUDE**2 - known, 0) + _NOISE**2 + _AMPLITUDE**2 / len(self._calls))
        return [
            Prediction(float(s), float(s * math.exp(-w)), float(s * math.exp(w)))
            for s, w in zip(seconds, spread, strict=True)
        ]

    def nearest(self, call: Call) -> int:
        """The index of the measured call that is most alike."""
        distance = ((self._places - _places([call])) ** 2).sum(-1)
        same = self._known_paths == call.path
        related = self._known_alone == (call.path in self._alone)
        return int(np.lexsort((distance, distance + _OTHER_PATH * ~same, ~related))[0])

    def _irregular(self, taken: _Floats) -> list[str]:
        """Paths whose calls take another time than the common sum says, all in all."""
        off = np.abs(np.log(taken / self._common.seconds(self._calls)))
        several = len(set(self._paths)) > 1
        # A path that is alone needs enough calls to tell that it computes cells that the mask does not show.
        enough = [path for path in dict.fromkeys(self._paths) if several or len(off) >= _FEW]
        return [path for path in enough if np.median(off[self._known_paths == path]) > math.log(_IRREGULAR)]

    def _sum(self, calls: Sequence[Call]) -> _Floats:
        seconds = self._common.seconds(calls)
        for index, call in enumerate(calls):
            if call.path in self._alone:
                seconds[index] = self._alone[call.path].seconds([call])[0]
        return seconds

    def _covariance(self, places: _Floats, calls: Sequence[Call]) -> _Floats:
        distance = ((places[:, None] - self._places[None]) ** 2).sum(-1)
        # Calls with and without groups are alike where one sum fits both. Their coordinates tell them apart enough.
        other = np.array([call.work.path for call in calls])[:, None] != self._known_works
        apart = np.array([call.path in self._alone for call in calls])[:, None] != self._known_alone
        return np.where(apart, 0.0, _AMPLITUDE**2 * np.exp(-(distance + _OTHER_PATH * other) / 2))


def _fit_sum(calls: Sequence[Call], seconds: _Floats, cells: bool = False) -> _Sum:
    relative = _features(calls, cells) / seconds[:, None]
    if len(calls) < _FEW and not cells:
        relative[:, 1:] = 0  # tiles alone: the other features cannot be told apart
    return _Sum(robust(relative, np.ones(len(seconds)), _NOISE), cells)


def _features(calls: Sequence[Call], cells: bool) -> _Floats:
    """The features that the sum combines: [calls][features]. Tiles of all heads come first, or of one head for rows."""
    rows = []
    for work, heads, heads_kv in calls:
        # A partly visible tile costs a tile and the masking. A block-sparse kernel need not compute it.
        whole = work.full if work.family.startswith("block_sparse") else work.tiles
        row = [
            heads * whole,
            heads * work.partial,
            heads * work.rows,
            heads * work.grid,
            heads * work.tokens * (work.calls - 1),
            heads * work.merged,
            work.longest,
            work.longest_column,
            work.longest_column * heads / heads_kv,
            work.calls - 1,
            1.0,
        ]
        rows.append([*row, heads * work.cells] if cells else row)
    return np.array(rows, np.float64)


def _places(calls: Sequence[Call]) -> _Floats:
    """The positions of calls. Two calls at a distance of 1 are off by factors that have little in common."""
    rows = []
    for work, heads, heads_kv in calls:
        tiles, lines = max(work.tiles, 1e-3), max(work.rows, 1.0)
        mean = tiles / lines
        rows.append(
            (
                math.log2(tiles * heads) / 4,
                math.log2(mean) / 3,
                2 * work.partial / tiles,
                math.log2(max(work.longest * work.calls / mean, 1e-3)) / 2,
                math.log2(max(work.longest_column * work.calls / mean, 1e-3)) / 2,
                math.log2(lines * heads) / 4,
                work.calls / 1.5,
                math.log2(heads / heads_kv) / 3,
            )
        )
    return np.array(rows, np.float64)


def robust(matrix: _Floats, wanted: _Floats, noise: float) -> _Floats:
    """The same as `non_negative`, where large errors weigh less (Huber). Errors below the noise all weigh the same."""
    weight = np.ones(len(wanted))
    for _ in range(_ROUNDS):
        x = non_negative(matrix * weight[:, None], wanted * weight)
        error = np.abs(matrix @ x - wanted)
        limit = max(1.5 * float(np.median(error)), noise)
        weight = np.sqrt(np.minimum(1, limit / np.maximum(error, 1e-12)))
    return x


def non_negative(matrix: _Floats, wanted: _Floats) -> _Floats:
    """The non-negative x for which matrix @ x is nearest to the wanted values, by least squares.

    Args:
        matrix: [equations, unknowns].
        wanted: [equations].

    Returns:
        x: [unknowns].
    """
    scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    scaled = matrix / scale
    x, active = np.zeros(scaled.shape[1]), np.zeros(scaled.shape[1], np.bool_)
    for _ in range(3 * len(x)):
        gradient = scaled.T @ (wanted - scaled @ x)
        gradient[active] = -np.inf
        best = int(gradient.argmax())
        if gradient[best] <= 1e-10:
            break
        active[best] = True
        x = _feasible(scaled, wanted, x, active)
    return x / scale


def _feasible(matrix: _Floats, wanted: _Floats, x: _Floats, active: NDArray[np.bool_]) -> _Floats:
    """The least squares of the active unknowns. An unknown that would be negative stops being active, in place."""
    while True:
        solved = np.zeros_like(x)
        solved[active] = np.linalg.lstsq(matrix[:, active], wanted, rcond=None)[0]
        below = active & (solved <= 0)
        if not below.any():
            return solved
        # Moves towards the solution until an unknown would be negative. An unknown that reaches 0 is no longer active.
        step = np.min(x[below] / np.maximum(x[below] - solved[below], 1e-300))
        x = x + step * (solved - x)
        active &= ~(below & (x <= 1e-12))
        x[~active] = 0
