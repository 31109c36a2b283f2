"""The layouts of the five strategies: the tokens of each rank, and its steps in order.

A strategy's runtime follows the layout. It makes the attention calls of `layout.steps[rank]` one after another. A step
names its queries, its keys and its heads. Tokens are in ascending order. Ranks count by the manifest's axes, and not by
the order of the mesh's dims (`longca.Layout`).

Every strategy needs as many queries as keys, because a rank holds a token's query and key. Rings cut block-sparse masks
between blocks, so that each step has a block-sparse mask again (`longca_cp.block_placement`). An
`UnsupportedError` says that a mask is not square, that heads do not divide, or that a placement does not suit it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca.manifests import Layout, Problem, Step
from longca.manifests.steps import HeadRanges, Ranges, Steps
from longca.masks import BlockSparseMask, Mask, SliceMask
from longca_cp.block_placement import key_blocks_seen
from longca_cp.placement import place
from longca_cp.ranges import keys_seen, split

__all__ = ["loongtrain", "ring_all_gather", "ring_p2p", "split_heads", "ulysses", "usp"]

_Ints = NDArray[np.int64]


def ulysses(problem: Problem, axis_sizes: Mapping[str, int], _placement: str) -> Layout:
    """One step a rank: all tokens, and the rank's heads. Its only placement is `contiguous`.

    Rank r has the r-th part of the query heads, and the KV heads that these attend to. If there are fewer KV heads than
    ranks, neighbouring ranks share one.
    """
    ranks = axis_sizes["ulysses"]
    mask = _square(problem)
    everything = place("contiguous", mask, 1)[0]
    heads = split_heads(problem, ranks, "ulysses")
    # The ranks exchange heads of all tokens, so that blocks need not be whole on a rank.
    return Layout(tuple((Step(everything, everything, *each),) for each in heads), split(everything, ranks))


def ring_p2p(problem: Problem, axis_sizes: Mapping[str, int], placement: str) -> Layout:
    """Step s of rank r: its own queries, and the keys of rank (r − s) mod n, for all heads.

    Keys and values go round the ring from each rank to the next. Step 0 has a rank's own keys. Empty steps are listed
    too, because their keys pass through.
    """
    ranks = axis_sizes["ring"]
    return _rings_of_groups(problem, placement, _ring_order(ranks), 1, "ring")


def ring_all_gather(problem: Problem, axis_sizes: Mapping[str, int], placement: str) -> Layout:
    """One step a rank: its own queries, and all keys that any of them sees, in ascending order, for all heads.

    Keys that none of a rank's queries sees are not in its `k_ranges`, and need not be sent to it. A block-sparse mask
    shows a query whole blocks of keys, so that these are blocks that some query of the rank keeps in some head.
    """
    ranks = axis_sizes["ring"]
    mask = _square(problem)
    shards = place(placement, mask, ranks)
    heads = (0, problem.heads_q), (0, problem.num_heads_kv)
    return Layout(tuple((Step(shard, _seen(mask, shard), *heads),) for shard in shards), shards)


def _seen(mask: Mask, shard: Ranges) -> Ranges:
    """The keys that some query of a shard sees."""
    if isinstance(mask, BlockSparseMask):
        return key_blocks_seen(mask, shard)
    return keys_seen(mask, shard) if isinstance(mask, SliceMask) else place("contiguous", mask, 1)[0]


def usp(problem: Problem, axis_sizes: Mapping[str, int], placement: str) -> Layout:
    """A ring of Ulysses groups: steps as in a ring, of the group's tokens and the rank's heads.

    The placement deals tokens to groups. Each group's tokens are split over its ranks contiguously. So the group's
    exchange gets them in ascending order when it joins them in the order of ranks. Rank r is member r mod u of group r
    // u, for groups of u.
    """
    ring, group = axis_sizes["ring"], axis_sizes["ulysses"]
    return _rings_of_groups(problem, placement, _ring_order(ring), group, "ulysses")


def loongtrain(problem: Problem, axis_sizes: Mapping[str, int], placement: str) -> Layout:
    """Head parallel × a double ring: as `usp`, with steps in the order of the two rings.

    Group (o, i) of `outer` × `inner` groups meets the keys of groups ((o − w) mod outer, (i − s) mod inner): for all
    windows w in order, and within each window for all inner steps s. Within a window keys go round the inner ring. From
    one window to the next, the keys of a group's first step go one hop along the outer ring. They can be sent before
    the inner ring begins. Rank r is member r mod h of group r // h, for h ranks along `heads`. Group (o, i) has the
    number o · inner + i.

    The paper's two placements of ranks are orders of the mesh's dims: head-first, ("outer", "inner", "heads"), and
    context-first, ("heads", "outer", "inner"). The layout is the same for both, because it numbers ranks by their
    coordinates.
    """
    outer, inner, heads = (axis_sizes[axis] for axis in ("outer", "inner", "heads"))
    o, i, window, step = np.ogrid[:outer, :inner, :outer, :inner]
    order = ((o - window) % outer * inner + (i - step) % inner).reshape(outer * inner, -1)
    return _rings_of_groups(problem, placement, order, heads, "heads")


def _ring_order(ranks: int) -> _Ints:
    rank = np.arange(ranks)
    return (rank[:, None] - rank) % ranks


def _rings_of_groups(problem: Problem, placement: str, order: _Ints, group: int, axis: str) -> Layout:
    """Groups on a ring, each of which meets the keys of groups in an order: [groups][steps]. Its ranks split heads."""
    tokens = place(placement, _square(problem), len(order))
    heads = split_heads(problem, group, axis)
    mine, each = np.arange(len(order))[:, None, None], np.arange(group)[:, None]
    table = np.stack(np.broadcast_arrays(mine, order[:, None, :], each), axis=-1)  # [groups, heads, steps, 3]
    steps = Steps.even(tokens, heads, table, len(order) * group)
    return Layout(steps, tuple(shard for part in tokens for shard in split(part, group)))


def split_heads(problem: Problem, ranks: int, axis: str) -> tuple[HeadRanges, ...]:
    """Each rank's heads, in order: an equal part of the query heads, and the KV heads that these attend to.

    If there are fewer KV heads than ranks, several ranks have the same KV head, and its gradients are summed over them.
    """
    heads_q, heads_kv = problem.heads_q, problem.num_heads_kv
    if heads_q % ranks:
        allowed = ", ".join(str(n) for n in range(1, heads_q + 1) if heads_q % n == 0)
        raise UnsupportedError(
            f"{heads_q} query heads do not divide among the {ranks} ranks of axis {axis}. "
            f"Give it a size of {allowed}; more ranks can go to a ring, which does not divide heads."
        )
    part, group = heads_q // ranks, heads_q // heads_kv
    if part % group and group % part:
        raise UnsupportedError(
            f"each of the {ranks} ranks of axis {axis} would have {part} of {heads_q} query heads, but {group} share a "
            f"KV head, so that a rank's heads would not be whole groups or parts of one. Give it a size that divides "
            f"the {heads_kv} KV heads, or is a multiple of them."
        )
    starts = range(0, heads_q, part)
    return tuple(((q, q + part), (q // group, -(-(q + part) // group))) for q in starts)


def _square(problem: Problem) -> Mask:
    mask = problem.concrete_mask
    if not mask.is_square:
        raise UnsupportedError(
            f"context parallelism places a token's query and key on one rank, and this is a {mask.label}. "
            "Give a mask of as many queries as keys."
        )
    return mask
