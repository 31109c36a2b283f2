"""Whole pairs: parts of queries that see all tokens of parts of keys, found without a cut of the mask for each pair."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from longca.manifests import Layout, Problem
from longca.manifests.step_cuts import mask_heads, step_areas
from longca.manifests.steps import Steps
from longca.masks import SliceMask
from longca.masks.stack import MaskStack
from longca.plan_cache import PlanCache

__all__ = ["whole_pairs", "whole_steps"]

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]

#: The largest number of slices times parts that are cut together.
_CELLS = 2**20


def whole_pairs(mask: SliceMask, steps: Steps) -> _Bools:
    """Whether each part of a layout's queries sees all tokens of each part of keys. The latest answers are cached.

    A pair is whole if one slice holds the corners of the rectangle around it, because a slice is convex. It is not
    whole if a corner is not visible, because the pair has a token there. Only the
    remaining pairs are cut. The answers are [parts, parts].
    """
    return _WHOLE.get(mask, steps.parts, lambda: _whole_pairs(mask, steps))


def whole_steps(problem: Problem, layout: Layout) -> _Bools:
    """Whether the queries of each step see all of its keys in all of its heads, by areas: [steps]."""
    table = layout.table
    tokens = np.array([np.diff(array).sum() for array in table.arrays], np.int64)
    queries, keys, heads = table.table.T
    cells = tokens[queries] * tokens[keys] * np.array([len(each) for each in mask_heads(problem, layout)])[heads]
    whole: _Bools = (cells > 0) & (step_areas(problem, layout) == cells)
    return whole


#: The latest answers.
_WHOLE: PlanCache[_Bools] = PlanCache(32)


def _whole_pairs(mask: SliceMask, steps: Steps) -> _Bools:
    arrays = steps.arrays
    shown = np.array([len(array) > 0 for array in arrays], np.bool_)
    ends = np.array([(array[0, 0], array[-1, 1] - 1) if len(array) else (0, 0) for array in arrays], np.int64)
    # The slice at each corner of the rectangle around a pair: [first or last query, part, first or last key, part].
    corners = _slices_at(mask, ends.T.ravel()).reshape(2, len(arrays), 2, len(arrays))
    seen = (corners > 0).all(axis=(0, 2)) & shown[:, None] & shown
    whole: _Bools = seen & (corners == corners[:1, :, :1]).all(axis=(0, 2))
    unsettled = np.argwhere(seen & ~whole)
    if len(unsettled):
        whole[tuple(unsettled.T)] = np.concatenate(list(_cut(mask, arrays, unsettled)))
    return whole


def _slices_at(mask: SliceMask, positions: _Ints) -> _Ints:
    """The slice, from 1, that shows each of some queries each of the same keys, or 0: [positions, positions]."""
    q0, q1, k0, k1, lo, hi = mask.array.T
    order = np.argsort(positions, kind="stable")
    keys = positions[order]
    changes = np.zeros((len(positions), len(positions) + 1), np.int64)
    for row, query in enumerate(positions.tolist()):
        mine = np.flatnonzero((q0 <= query) & (query < q1))
        start, stop = np.maximum(k0[mine], query + lo[mine]), np.minimum(k1[mine], query + hi[mine] + 1)
        np.add.at(changes[row], np.searchsorted(keys, start), mine + 1)
        np.add.at(changes[row], np.searchsorted(keys, np.maximum(start, stop)), -mine - 1)
    found = np.empty((len(positions), len(positions)), np.int64)
    found[:, order] = np.cumsum(changes, axis=1)[:, :-1]
    return found


def _cut(mask: SliceMask, arrays: tuple[_Ints, ...], pairs: _Ints) -> Iterator[_Bools]:
    """Whether pairs are whole, by the areas of their cuts."""
    tokens = np.array([np.diff(array).sum() for array in arrays], np.int64)
    most = max(1, _CELLS // max(1, len(mask.array)))
    for first in range(0, len(pairs), most):
        some = pairs[first : first + most]
        cells = tokens[some].prod(axis=1)
        yield MaskStack.of_cuts(mask, arrays, arrays, some).areas == cells
