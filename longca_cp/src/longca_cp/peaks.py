"""Peaks: the formulas of the bytes that a forward or a backward of each strategy allocates on a rank. Torch-free.

`longca_cp.memory` says what they count, and has the symbols. An axis with a link has windows instead of buffers
(`longca_cp.pushed_memory`).

Source: the strategies beside this file. A test compares the formulas with their allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from longca_cp import pushed_memory as pushed
from longca_cp.overlap import chunks_around_rings, gather_chunks, ulysses_chunks
from longca_cp.share import Share

__all__ = ["PEAKS", "Formula"]

#: From this number of partial results on, their sum is a tensor of its own.
_SUMMED = 3


def _ulysses(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if "ulysses" in share.pushes:
        return pushed.exchange(share, mine, mine.q)
    chunks, whole = ulysses_chunks(share.problem, sizes["ulysses"], share.nccl, pushes=False), mine.q + mine.kv
    # Either two chunks' q, k and v leave and arrive. Or one chunk is computed, one moves, and an output returns.
    exchanging = min(2, chunks) * 2 * whole // chunks + _copies(share, mine)
    computing = ((2 * chunks - 1) * whole + 2 * mine.q) // chunks
    return share.q + max(exchanging, computing)


def _ulysses_backward(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if "ulysses" in share.pushes:
        return pushed.exchange_backward(share, mine, 0)
    chunks = ulysses_chunks(share.problem, sizes["ulysses"], share.nccl, pushes=False)
    gradients = 2 * (mine.q + mine.kv)  # by heads, and as they arrive by tokens
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q // chunks + gradients + sums


def _ring_of(share: Share, ranks: int) -> int:
    """Two buffers of keys and values, and partial outputs, the first of which becomes the output."""
    return _ring(share, "ring", ranks) + _parts(share, ranks)


def _ring_backward_of(share: Share, ranks: int) -> int:
    """The buffers of the forward, one step's gradients, and the sums of gradients that leave and arrive."""
    return _gradient_ring(share, "ring", ranks) + _parts(share, ranks)


def _parts(share: Share, steps: int) -> int:
    """Partial results of queries: two of them, and from three on their sum."""
    return min(2, steps) * share.q + (share.wide * share.q if steps >= _SUMMED else 0)


def _ring(share: Share, axis: str, ranks: int) -> int:
    if axis in share.pushes or ranks == 1:
        return pushed.ring(share, ranks)
    return 2 * share.kv


def _standing(share: Share, axis: str, ranks: int) -> int:
    """The window of a ring that pushes, which stands between calls."""
    return pushed.ring(share, ranks) if axis in share.pushes else 0


def _gradient_ring(share: Share, axis: str, ranks: int) -> int:
    if axis in share.pushes or ranks == 1:
        return pushed.gradient_ring(share, ranks)
    return (3 + 2 * share.wide) * share.kv


def _all_gather(share: Share, sizes: dict[str, int]) -> int:
    pushes = "ring" in share.pushes
    chunks = gather_chunks(share.problem, share.nccl, pushes)
    if pushes:
        return pushed.gather(share, sizes["ring"], chunks)
    mine, all_of = share.kv // chunks, sizes["ring"] * share.kv // chunks
    # A chunk as received and in order, the next one on its way, and the last one until this one has arrived.
    return share.q + min(chunks + 1, 4) * all_of + mine


def _all_gather_backward(share: Share, sizes: dict[str, int]) -> int:
    pushes = "ring" in share.pushes
    chunks, wide = gather_chunks(share.problem, share.nccl, pushes), share.wide
    if pushes:
        return pushed.gather_backward(share, sizes["ring"], chunks)
    mine, all_of = share.kv // chunks, sizes["ring"] * share.kv // chunks
    at_hand = 3 * all_of + wide * all_of  # a chunk, its gradients, these in their owners' order, and wide
    coming = all_of + mine if chunks > 2 else 0
    leaving = wide * (all_of + mine) if chunks > 1 else 0
    return share.q + share.kv + at_hand + coming + leaving + wide * mine


def _usp(share: Share, sizes: dict[str, int]) -> int:
    mine, chunk = _by_heads(share, sizes, "ulysses")
    standing = _standing(mine, "ring", sizes["ring"])
    return _around(share, mine, "ulysses", mine.q - chunk.q + _ring_of(chunk, sizes["ring"]), standing)


def _usp_backward(share: Share, sizes: dict[str, int]) -> int:
    mine, chunk = _by_heads(share, sizes, "ulysses")
    rings = _ring_backward_of(chunk, sizes["ring"]) if sizes["ring"] > 1 else 0
    return _around_backward(share, mine, "ulysses", rings)


def _loongtrain(share: Share, sizes: dict[str, int]) -> int:
    (mine, chunk), (outer, inner) = _by_heads(share, sizes, "heads"), (sizes["outer"], sizes["inner"])
    window = _ring(chunk, "inner", inner)
    rings = mine.q - chunk.q + _ring(chunk, "outer", outer) + window  # with the results of the chunks before
    within = rings + _parts(chunk, outer * inner)
    # A window's ring is made before the ring of the window before it is freed. Pushes share one window of a link.
    more = 0 if "inner" in share.pushes else window
    between = rings + more + _parts(chunk, (outer - 1) * inner) if outer > 1 else 0
    standing = _standing(mine, "outer", outer) + _standing(mine, "inner", inner)
    return _around(share, mine, "heads", max(within, between), standing)


def _loongtrain_backward(share: Share, sizes: dict[str, int]) -> int:
    (mine, chunk), (outer, inner) = _by_heads(share, sizes, "heads"), (sizes["outer"], sizes["inner"])
    if outer * inner == 1:
        return _around_backward(share, mine, "heads", 0)
    alone = outer == 1 or "outer" in share.pushes
    around = pushed.outer_gradient_ring(chunk, outer) if alone else _gradient_ring(chunk, "", outer)
    before = chunk.wide * chunk.kv if outer > 1 and share.pushes & {"outer", "inner"} else 0  # the window before's sum
    if "inner" in share.pushes or inner == 1:
        rings = around + before + pushed.gradient_ring(chunk, inner, inner=True)
        return _around_backward(share, mine, "heads", rings + _parts(chunk, outer * inner))
    window = _gradient_ring(chunk, "", inner)
    last = chunk.kv  # the gradients of a step of the window before, or with one window the results
    within = around + before + window + last + _parts(chunk, outer * inner)
    between = around + 2 * window + _parts(chunk, (outer - 1) * inner) if outer > 1 else 0
    return _around_backward(share, mine, "heads", max(within, between))


def _by_heads(share: Share, sizes: dict[str, int], axis: str) -> tuple[Share, Share]:
    """The share after an exchange of heads, and that of one of the chunks that go round rings."""
    ranks, groups = sizes[axis], prod(sizes.values()) // sizes[axis]
    mine = share.by_heads(ranks)
    chunks = chunks_around_rings(share.problem, ranks, groups, axis in share.pushes)
    return mine, replace(mine, q=mine.q // chunks, kv=mine.kv // chunks, heads_kv=mine.heads_kv // chunks)


def _around(share: Share, mine: Share, axis: str, inside: int, standing: int) -> int:
    """An exchange of heads around the memory of rings, whose windows stand before and after them."""
    whole = mine.q + mine.kv
    if axis in share.pushes:
        return pushed.exchange(share, mine, inside)
    exchanging = max(3 * share.q + whole, share.q + 2 * whole + _copies(share, mine))
    return max(share.q + whole + inside, standing + exchanging)


def _around_backward(share: Share, mine: Share, axis: str, inside: int) -> int:
    if axis in share.pushes:
        return pushed.exchange_backward(share, mine, inside)
    gradients = mine.q + mine.kv  # where they lie side by side to be sent
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q + gradients + max(inside, gradients + sums)


def _copies(share: Share, mine: Share) -> int:
    """Copies of KV heads for several ranks, before they are sent."""
    return mine.kv if mine.kv > share.kv else 0


#: From a share and the ranks along each axis to bytes.
Formula = Callable[[Share, dict[str, int]], int]
#: The formulas of the forward and of the backward.
PEAKS: Mapping[str, tuple[Formula, Formula]] = {
    "ulysses": (_ulysses, _ulysses_backward),
    "ring_p2p": (
        lambda share, sizes: _ring_of(share, sizes["ring"]),
        lambda share, sizes: _ring_backward_of(share, sizes["ring"]),
    ),
    "ring_all_gather": (_all_gather, _all_gather_backward),
    "usp": (_usp, _usp_backward),
    "loongtrain": (_loongtrain, _loongtrain_backward),
}
