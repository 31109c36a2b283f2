"""Trees: prompts and answers that share prefixes, flattened so that each shared prefix is there once.

A node is a run of tokens. A token sees its node causally, and the node's ancestors wholly. So the tokens on the path
from a root to a node see what they would see in a sequence of that path alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import check_pieces, shown
from longca.masks.algebra import intersection
from longca.masks.conversions import as_array
from longca.masks.mask import Mask, check_seqlen
from longca.masks.slice_mask import SliceMask
from longca.masks.slices import UNBOUNDED, Slice, merge, tighten

__all__ = ["tree", "within_window"]


def tree(parents: Any, lengths: Any) -> SliceMask:
    """The mask of a tree, or of several trees: each token sees its node causally and the node's ancestors wholly.

    The tokens of the nodes follow each other in the order of the nodes. Parents come before their children. Depth-first
    order has the fewest slices, at most one a node, and one interval of queries for each key.

    A token's position is its depth along its path. `mask.visible_keys()[0] - 1` has the position of each token, as
    `position_ids` for RoPE.

    Args:
        parents: The index of each node's parent, or −1 for a root: integers [nodes].
        lengths: Tokens of each node: integers [nodes], at least 1.

    Raises:
        MaskError: No nodes, other numbers of parents than of lengths, a length below 1, a parent that does not exist or
            does not come before its child, or too many tokens or slices.
    """
    above, sizes = _nodes(parents, lengths)
    depths = [-1] * (len(above) + 1)  # the last one is that of -1, above the roots
    for node, parent in enumerate(above):
        depths[node] = depths[parent] + 1
    starts = [0, *accumulate(sizes)]
    seqlen = check_seqlen(starts[-1])
    # A node's keys are seen by the node and its descendants: runs of queries, and one run in depth-first order. Between
    # two neighbours the runs end that belong to the first one's path alone, and those of the second one's path begin.
    begins, slices, before = starts.copy(), [], -1
    for node in (*range(len(above)), -1):
        ended, begun = before, node
        while ended != begun:
            if depths[ended] >= depths[begun]:
                slices.append((begins[ended], starts[node], starts[ended], starts[ended + 1], -UNBOUNDED, 0))
                ended = above[ended]
            else:
                begins[begun] = starts[node]
                begun = above[begun]
        check_pieces(len(slices), "slices", "List the nodes depth-first, or give fewer nodes")
        before = node
    return SliceMask(merge(tighten(np.array(slices, np.int64))), seqlen, seqlen)


def within_window(mask: Mask, window: int) -> Mask:
    """The pairs of a mask whose key is less than a window before the query, as in layers with a sliding window.

    In a tree, the window counts the tokens of a path. Causal masks and documents are trees too. In any other mask it
    counts the tokens of the sequence, and the last query is aligned with the last key. A mask that is within the window
    is returned itself.

    Args:
        mask: A mask whose heads do not differ.
        window: The most tokens, the query's own included: at least 1.

    Raises:
        MaskError: A window below 1, heads that differ, or too many slices.
    """
    if window < 1:
        raise MaskError(f"window is {shown(window)}; give at least 1 token")
    one, sizes = intersection(mask), (mask.seqlen_q, mask.seqlen_k)
    least = mask.seqlen_k - mask.seqlen_q + 1 - window
    if not (one.array[:, 4] < least).any():
        return mask
    if not mask.is_square or (depths := _depths(one)) is None:
        return intersection(one, SliceMask([Slice(0, mask.seqlen_q, 0, mask.seqlen_k, least)], *sizes))
    # Between two runs of tokens whose depths follow one another, the window is a band.
    shifts = depths - np.arange(len(depths))
    edges = np.r_[0, np.flatnonzero(np.diff(shifts)) + 1, len(depths)].tolist()
    runs = [(*run, int(shifts[run[0]])) for run in pairwise(edges)]
    slices = []
    for q0, q1, k0, k1, lo, hi in one.array.tolist():
        for start, stop, depth in runs[bisect_right(edges, q0) - 1 : bisect_left(edges, q1)]:
            for start_k, stop_k, depth_k in runs[bisect_right(edges, k0) - 1 : bisect_left(edges, k1)]:
                rows, keys = (max(q0, start), min(q1, stop)), (max(k0, start_k), min(k1, stop_k))
                slices.append((*rows, *keys, max(lo, depth - depth_k + 1 - window), hi))
        check_pieces(len(slices), "slices", "List the nodes depth-first, or give fewer nodes")
    return SliceMask(merge(tighten(np.array(slices, np.int64).reshape(-1, 6))), *sizes)


def _depths(mask: SliceMask) -> NDArray[np.int64] | None:
    """Each token's depth along its path: [tokens]. None for a mask that is no tree, or a tree whose paths have no gaps.

    In a tree, each token sees itself, and what the last token before it that it sees itself sees. Sets of tokens are
    compared by sums of random numbers. Tokens that see nothing, such as padding, are on no path.
    """
    if mask.row_pieces.max_intervals < 2:
        return None
    (starts, stops), places = mask.row_intervals(), np.arange(mask.seqlen_q)
    numbers = np.random.default_rng(0).integers(2**64 - 1, size=len(places), dtype=np.uint64)
    sums = np.r_[np.uint64(0), numbers.cumsum()]
    seen = (sums[stops] - sums[starts]).sum(0, dtype=np.uint64)
    before = np.where(starts < places, np.minimum(stops, places), 0).max(0, initial=0) - 1
    counts = (stops - starts).sum(0, dtype=np.int64)
    if ((seen != numbers + np.r_[seen, np.uint64(0)][before]) & (counts > 0)).any():  # the last one is above the roots
        return None
    return np.where(counts > 0, counts - 1, places)


def _nodes(parents: Any, lengths: Any) -> tuple[list[int], list[int]]:
    """The parents and the lengths of a tree's nodes as integers, checked."""
    found = []
    for name, values in (("parents", parents), ("lengths", lengths)):
        array = as_array(values)
        check_pieces(array.size, "nodes", "Give fewer and longer nodes")
        if array.ndim != 1 or not array.size or not np.issubdtype(array.dtype, np.integer):
            raise MaskError(f"{name} is {shown(values)}; give a list with one integer for each node, -1 for no parent")
        found.append(array.tolist())
    above, sizes = found
    if len(above) != len(sizes):
        raise MaskError(f"a tree has {len(above)} parents and {len(sizes)} lengths; give one of each for every node")
    for node, (parent, size) in enumerate(zip(above, sizes, strict=True)):
        if size < 1:
            raise MaskError(f"node {node} has length {shown(size)}; each needs at least 1 token")
        if not -1 <= parent < len(above):
            raise MaskError(
                f"node {node} has parent {shown(parent)}, and the nodes are 0 to {len(above) - 1}; give -1 for a root"
            )
        if parent >= node:
            raise MaskError(
                f"node {node} does not come after its parent {parent}; list parents before children, such as "
                "depth-first, and give -1 for a root"
            )
    return above, sizes
