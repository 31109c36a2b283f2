"""Fits: how long a kernel takes, learnt from measured calls of one kernel in one direction.

A fit is a sum and a correction. The sum is a non-negative combination of the features of `Work`, fitted by least
squares on the relative error. Large errors weigh less (Huber), so that one odd record does not bend it. The correction
is a Gaussian process over the logarithm of the residual: similar calls are off by the same factor. The process also
gives its own uncertainty. Without similar measurements there is no correction, and the interval is wide.

A fit may have a prior: the fit of another head dimension that has more calls. It then learns a ratio for each kind of
cost, and the correction knows the calls of both.

Sources: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23. Rasmussen and Williams, Gaussian
Processes for Machine Learning (2006), algorithm 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.masks import Form
from longca_advice.work import TILE, Work

__all__ = ["Call", "Calls", "Fit", "Prediction", "non_negative", "robust"]

_Floats = NDArray[np.float64]

#: Standard deviations of the correction and of repeated measurements, in logarithms.
_AMPLITUDE, _NOISE = 0.08, 0.02

#: Calls of another path, and those of a prior, are as far as calls whose coordinates differ by 1.
_OTHER_PATH = _OF_PRIOR = 1.0

#: From this factor on, a path counts as other code and is fitted without the other paths. In logarithms.
_IRREGULAR = math.log(1.25)

#: With fewer measured calls than this, only the time of a tile is fitted.
_FEW = 4

#: The cause of the seconds of each of the features of `Calls`.
_CAUSES = (
    *("tiles", "masking", "rows", "documents", "layers", "layers"),
    *("longest", "longest", "longest", "layers", "launch", "cells"),
)

#: The kind of cost of each of the features: work on tiles, work on rows and masking, and what all wait for.
_KINDS = np.eye(3)[[0, 1, 1, 1, 1, 1, 2, 2, 2, 1, 2, 0]]

#: How much a ratio that is twice as expected counts: as much as this relative error of a call.
_RIDGE = 0.05

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


class Calls(tuple[Call, ...]):
    """Calls, with the numbers that every fit asks of them."""

    @cached_property
    def places(self) -> _Floats:
        """The positions of the calls: [calls, coordinates]. Calls at a distance of 1 have little in common."""
        numbers = (
            (work.tiles, work.rows, work.partial, work.longest, work.longest_column, work.calls, heads, heads_kv)
            for work, heads, heads_kv in self
        )
        tiles, lines, partial, longest, column, count, heads, heads_kv = np.array(list(numbers), np.float64).T
        tiles, lines = np.maximum(tiles, 1e-3), np.maximum(lines, 1.0)
        mean = tiles / lines
        columns = (
            np.log2(tiles * heads) / 4,
            np.log2(mean) / 3,
            2 * partial / tiles,
            np.log2(np.maximum(longest * count / mean, 1e-3)) / 2,
            np.log2(np.maximum(column * count / mean, 1e-3)) / 2,
            np.log2(lines * heads) / 4,
            count / 1.5,
            np.log2(heads / heads_kv) / 3,
        )
        return np.stack(columns, axis=1)

    @cached_property
    def features(self) -> _Floats:
        """The features that sums combine: [calls, features]. Tiles of all heads come first, or of one head for rows."""
        numbers = (
            (
                # A partly visible tile costs a tile and the masking. A block-sparse kernel need not compute it.
                work.full if work.has_blocks else work.tiles,
                work.partial,
                work.rows,
                work.grid,
                work.tokens * (work.calls - 1),
                work.merged,
                work.cells,
                work.longest,
                work.longest_column,
                work.calls - 1,
                heads,
                heads / heads_kv,
            )
            for work, heads, heads_kv in self
        )
        *of_heads, cell, longest, column, further, heads, group = np.array(list(numbers), np.float64).T
        columns = [heads * each for each in of_heads] + [longest, column, column * group, further, np.ones(len(self))]
        return np.stack([*columns, heads * cell], axis=1)

    @cached_property
    def by_path(self) -> dict[str, list[int]]:
        """The indices of the calls of each path."""
        return _grouped(call.path for call in self)

    @cached_property
    def by_work_path(self) -> dict[str, list[int]]:
        """The indices of the calls of each path of their works."""
        return _grouped(call.work.path for call in self)


class Prediction(NamedTuple):
    """The most likely seconds of a call, and the ends of the interval that holds the time with 90 %."""

    seconds: float
    low: float
    high: float


class Fit:
    """A fit to measured calls and their seconds: at least one.

    Args:
        calls: The calls.
        seconds: Their seconds.
        prior: The fit to calls of another head dimension.
        ratio: How much longer these calls are expected to work on a tile than those of the prior.
    """

    def __init__(
        self, calls: Sequence[Call], seconds: Sequence[float], prior: Fit | None = None, ratio: float = 1.0
    ) -> None:
        self._calls, taken = Calls(calls), np.array(seconds, np.float64)
        self._alone: dict[str, _Floats] = {}
        if prior is None:
            self._common = _fit_sum(self._calls.features, taken)
        else:
            self._scale_sums(taken, prior, ratio)
        self._fit_alone(taken, has_prior=prior is not None)
        self._residual = np.log(taken / self._sum(self._calls))
        if prior is not None:
            self._calls = Calls((*self._calls, *prior._calls))
            self._residual = np.concatenate([self._residual, prior._residual])
        self._own = np.arange(len(self._calls)) < len(taken)
        self._known_paths = np.array([call.path for call in self._calls])
        self._known_works = np.array([call.work.path for call in self._calls])
        self._known_alone = np.array([call.path in self._alone for call in self._calls])
        self._places = self._calls.places
        # A call that is off by more than the correction allows is odd. Its neighbours do not follow it.
        odd = np.maximum(np.abs(self._residual) - 3 * _AMPLITUDE, 0)
        covariance = self._covariance(self._calls, self._own[:, None]) + np.diag(_NOISE**2 + odd**2)
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ self._residual

    def seconds(self, calls: Calls) -> _Floats:
        """The most likely seconds of some calls, without their intervals: [calls]."""
        return self._sum(calls) * np.exp(self._covariance(calls) @ self._weights)

    def predict(self, calls: Sequence[Call]) -> list[Prediction]:
        """The seconds of some calls: at least one."""
        calls = Calls(calls)
        shared, seconds = self._covariance(calls), self.seconds(calls)
        known = np.einsum("ij,jk,ik->i", shared, self._inverse, shared)
        spread = _NINETY * np.sqrt(np.maximum(_AMPLITUDE**2 - known, 0) + _NOISE**2 + _AMPLITUDE**2 / self._own.sum())
        return [
            Prediction(float(s), float(s * math.exp(-w)), float(s * math.exp(w)))
            for s, w in zip(seconds, spread, strict=True)
        ]

    def parts(self, call: Call) -> dict[str, float]:
        """The seconds of a call by cause. They sum to its seconds."""
        calls, weights = Calls((call,)), self._alone.get(call.path, self._common)
        each = calls.features[0, : len(weights)] * weights
        found = dict.fromkeys(_CAUSES, 0.0)
        for cause, part in zip(_CAUSES, each / max(each.sum(), _LEAST) * self.seconds(calls), strict=False):
            found[cause] += float(part)
        return found

    def nearest(self, call: Call) -> int:
        """The index of the measured call that is most alike. Those of the prior are none."""
        distance = ((self._places - Calls((call,)).places) ** 2).sum(-1)
        same = self._known_paths == call.path
        related = self._known_alone == (call.path in self._alone)
        return int(np.lexsort((distance, distance + _OTHER_PATH * ~same, ~related, ~self._own))[0])

    def _fit_alone(self, taken: _Floats, *, has_prior: bool) -> None:
        """Fits the paths alone whose calls take another time than their sum says, all in all."""
        features, paths = self._calls.features, self._calls.by_path
        off = np.abs(np.log(taken / self._sum(self._calls)))
        # A path needs enough calls to tell that it computes cells that the mask does not show, or more than the prior.
        least = _FEW if has_prior or len(paths) == 1 else 1
        is_odd = {path: len(each) >= least and np.median(off[each]) > _IRREGULAR for path, each in paths.items()}
        for path in filter(is_odd.get, paths):
            self._alone[path] = _fit_sum(features[paths[path]], taken[paths[path]], cells=True)
        regular = [index for path, each in paths.items() if not is_odd[path] for index in each]
        if not has_prior and 0 < len(regular) < len(taken):
            self._common = _fit_sum(features[regular], taken[regular])

    def _scale_sums(self, taken: _Floats, prior: Fit, ratio: float) -> None:
        """The sums of a prior, where each kind of cost takes as many times as long as these calls say."""
        costs = np.zeros((len(taken), _KINDS.shape[1]))
        for path, mine in self._calls.by_path.items():
            weights = prior._alone.get(path, prior._common)
            costs[mine] = self._calls.features[mine, : len(weights)] * weights @ _KINDS[: len(weights)]
        # Work on rows hardly depends on the head dimension.
        expected = np.array([ratio, 1, ratio])
        relative = np.vstack([costs * expected / taken[:, None], _RIDGE * np.eye(len(expected))])
        wanted = np.append(np.ones(len(taken)), np.full(len(expected), _RIDGE))
        times = _KINDS @ (expected * robust(relative, wanted, _NOISE))
        self._common = prior._common * times[: len(prior._common)]
        self._alone = {path: weights * times for path, weights in prior._alone.items()}

    def _sum(self, calls: Calls) -> _Floats:
        seconds = _seconds(self._common, calls.features)
        for path, mine in calls.by_path.items():
            if path in self._alone:
                seconds[mine] = _seconds(self._alone[path], calls.features[mine])
        return seconds

    def _covariance(self, calls: Calls, own: NDArray[np.bool_] | bool = True) -> _Floats:
        """The covariance with the known calls: [calls, known]. Calls that are not own are the prior's."""
        distance = np.zeros((len(calls), len(self._calls))) + _OF_PRIOR * (own != self._own)
        for mine, known in zip(calls.places.T, self._places.T, strict=True):
            distance += (mine[:, None] - known) ** 2
        # Calls with and without groups are alike where one sum fits both. Their coordinates tell them apart enough.
        for path, rows in calls.by_work_path.items():
            distance[rows] += _OTHER_PATH * (self._known_works != path)
        for path, rows in calls.by_path.items():
            distance[np.ix_(np.array(rows), self._known_alone != (path in self._alone))] = np.inf
        return _AMPLITUDE**2 * np.exp(-distance / 2)


def _seconds(weights: _Floats, features: _Floats) -> _Floats:
    """The seconds of calls by a non-negative sum of their features: [calls]."""
    return np.maximum(features[:, : len(weights)] @ weights, _LEAST)


def _fit_sum(features: _Floats, seconds: _Floats, cells: bool = False) -> _Floats:
    """The weights of the features. The last one, of cells, is only for some paths."""
    relative = features[:, : None if cells else -1] / seconds[:, None]
    if len(features) < _FEW and not cells:
        relative[:, 1:] = 0  # tiles alone: the other features cannot be told apart
    return robust(relative, np.ones(len(seconds)), _NOISE)


def _grouped(paths: Iterable[str]) -> dict[str, list[int]]:
    """The indices of equal paths."""
    found: dict[str, list[int]] = {}
    for index, path in enumerate(paths):
        found.setdefault(path, []).append(index)
    return found


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
