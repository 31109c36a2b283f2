"""Memory: the bytes of one call of a strategy on one rank at its peak, beyond its arguments. Torch-free.

The formulas count the allocations of the strategies with their results. They leave out the log-sum-exps (4 bytes for a
query and head) and the kernel's own allocations. They assume that no step is empty, and that every tensor needs
reordering, and so are upper bounds.

    Q, KV   a rank's queries, and its keys and values together, in bytes
    w       ratio of the bytes of a sum's element to the bytes of an element: 2 for bfloat16
    ρ       copies of a KV head if there are fewer heads than ranks that share them, or else 1
    E       Q + ρKV: queries, keys and values of a rank's heads and its group's tokens
    c       chunks of heads that take turns

An axis with a link has windows instead of buffers (`longca_cp.pushed_memory`).

Source: the strategies beside this file. A test compares the formulas with their allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from longca.errors import UnknownNameError
from longca.manifests import Problem, StrategyMemory, Transport
from longca.manifests.offers import DTYPE_BYTES
from longca.manifests.problem import Direction
from longca_cp import pushed_memory as pushed
from longca_cp.block_placement import most_tokens
from longca_cp.overlap import GATHER_CHUNKS, ULYSSES_CHUNKS, chunk_count

__all__ = [
    "Share",
    "kept_bytes",
    "loongtrain_memory",
    "peak_bytes",
    "ring_all_gather_memory",
    "ring_p2p_memory",
    "ulysses_memory",
    "usp_memory",
]

#: From this number of partial results on, their sum is a tensor of its own.
_SUMMED = 3

#: The axes of rings. A placement deals tokens to parts along them.
_RINGS = ("ring", "outer", "inner")


@dataclass(frozen=True)
class Share:
    """A rank's share of a problem.

    Attributes:
        q: Bytes of its queries.
        kv: Bytes of its keys and values together.
        wide: Ratio of the bytes of a sum's element to the bytes of an element.
        heads_kv: KV heads.
        problem: The problem of all ranks together.
        nccl: Whether NCCL moves the tensors.
        pushes: Whether axes of several ranks have links.
    """

    q: int
    kv: int
    wide: int
    heads_kv: int
    problem: Problem
    nccl: bool
    pushes: bool = False

    @classmethod
    def of(cls, problem: Problem, axis_sizes: Mapping[str, int], nccl: bool, pushes: bool = False) -> Share:
        """The largest share of any rank."""
        size, ranks = DTYPE_BYTES[problem.dtype], prod(axis_sizes.values())
        parts = prod(axis_sizes.get(axis, 1) for axis in _RINGS)
        row = most_tokens(problem.concrete_mask, parts, ranks) * problem.head_dim * size
        heads_kv = problem.num_heads_kv
        return cls(problem.heads_q * row, 2 * heads_kv * row, max(1, 4 // size), heads_kv, problem, nccl, pushes)

    def by_heads(self, ranks: int) -> Share:
        """The share after an exchange of heads among `ranks` ranks. Only copies of KV heads change its bytes."""
        copies = max(1, ranks // self.heads_kv)
        return replace(self, kv=copies * self.kv, heads_kv=max(1, self.heads_kv // ranks))

    def chunks(self, most: int) -> int:
        """Number of chunks of heads, up to `most`."""
        return chunk_count(self.problem, self.heads_kv, most, self.nccl)


def peak_bytes(
    strategy: str,
    problem: Problem,
    axis_sizes: Mapping[str, int],
    nccl: bool = False,
    transport: Transport = Transport.AUTO,
) -> int:
    """The peak of the bytes that one call in the problem's direction allocates on a rank, results included.

    The forward before a backward kept every tensor it could. A forward alone keeps nothing.

    Args:
        strategy: One of this distribution's strategies.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of the strategy's axes.
        nccl: Whether NCCL moves the tensors. If so, the heads of full masks are not split into chunks.
        transport: The way to move tensors. `auto` takes collectives.

    Returns:
        Bytes beyond q, k and v, the gradient of the output and the tensors that the forward kept. They do not count
        the log-sum-exps and the kernel's own allocations.

    Raises:
        UnknownNameError: The strategy is not in this distribution.
    """
    forward, backward = _of(strategy)
    formula = forward if problem.direction == "forward" else backward
    return formula(Share.of(problem, axis_sizes, nccl, transport is Transport.COPY_ENGINE), dict(axis_sizes))


def kept_bytes(strategy: str, problem: Problem, axis_sizes: Mapping[str, int]) -> int:
    """Bytes that a forward keeps for the backward beyond q, k, v and the output: E and the output by heads, or none.

    Args:
        strategy: One of this distribution's strategies.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of the strategy's axes.

    Raises:
        UnknownNameError: The strategy is not in this distribution.
    """
    _of(strategy)
    axis = {"ulysses": "ulysses", "usp": "ulysses", "loongtrain": "heads"}.get(strategy)
    if axis is None:
        return 0
    share = Share.of(problem, axis_sizes, nccl=False).by_heads(axis_sizes[axis])
    return 2 * share.q + share.kv


def _ulysses(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    chunks, whole = mine.chunks(ULYSSES_CHUNKS), mine.q + mine.kv
    if share.pushes and sizes["ulysses"] > 1:
        return pushed.exchange(share, mine, mine.q)
    # Either two chunks' q, k and v leave and arrive. Or one chunk is computed, one moves, and an output returns.
    exchanging = min(2, chunks) * 2 * whole // chunks + _copies(share, mine)
    computing = ((2 * chunks - 1) * whole + 2 * mine.q) // chunks
    return share.q + max(exchanging, computing)


def _ulysses_backward(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if share.pushes and sizes["ulysses"] > 1:
        return pushed.exchange_backward(share, mine, 0)
    gradients = 2 * (mine.q + mine.kv)  # by heads, and as they arrive by tokens
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q // mine.chunks(ULYSSES_CHUNKS) + gradients + sums


def _ring_of(share: Share, ranks: int) -> int:
    """Two buffers of keys and values, and partial outputs, the first of which becomes the output."""
    return _ring(share, ranks) + _parts(share, ranks)


def _ring_backward_of(share: Share, ranks: int) -> int:
    """The buffers of the forward, one step's gradients, and the sums of gradients that leave and arrive."""
    return _gradient_ring(share, ranks) + _parts(share, ranks)


def _parts(share: Share, steps: int) -> int:
    """Partial results of queries: two of them, and from three on their sum."""
    return min(2, steps) * share.q + (share.wide * share.q if steps >= _SUMMED else 0)


def _ring(share: Share, ranks: int) -> int:
    return pushed.ring(share, ranks) if share.pushes and ranks > 1 else min(2, ranks) * share.kv


def _gradient_ring(share: Share, ranks: int) -> int:
    if share.pushes and ranks > 1:
        return pushed.gradient_ring(share, ranks)
    return (min(2, ranks) + 1) * share.kv + min(2, ranks) * share.wide * share.kv


def _all_gather(share: Share, sizes: dict[str, int]) -> int:
    chunks = share.chunks(GATHER_CHUNKS)
    if share.pushes and sizes["ring"] > 1:
        return pushed.gather(share, sizes["ring"], chunks)
    mine, all_of = share.kv // chunks, sizes["ring"] * share.kv // chunks
    # A chunk as received and in order, the next one on its way, and the last one until this one has arrived.
    return share.q + min(chunks + 1, 4) * all_of + mine


def _all_gather_backward(share: Share, sizes: dict[str, int]) -> int:
    chunks, wide = share.chunks(GATHER_CHUNKS), share.wide
    if share.pushes and sizes["ring"] > 1:
        return pushed.gather_backward(share, sizes["ring"], chunks)
    mine, all_of = share.kv // chunks, sizes["ring"] * share.kv // chunks
    at_hand = 3 * all_of + wide * all_of  # a chunk, its gradients, these in their owners' order, and wide
    coming = all_of + mine if chunks > 2 else 0
    leaving = wide * (all_of + mine) if chunks > 1 else 0
    return share.q + share.kv + at_hand + coming + leaving + wide * mine


def _usp(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    standing = pushed.ring(mine, sizes["ring"]) if share.pushes else 0
    return _around(share, mine, sizes["ulysses"], _ring_of(mine, sizes["ring"]), standing)


def _usp_backward(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    return _around_backward(share, mine, sizes["ulysses"], _ring_backward_of(mine, sizes["ring"]))


def _loongtrain(share: Share, sizes: dict[str, int]) -> int:
    mine, (outer, inner) = share.by_heads(sizes["heads"]), (sizes["outer"], sizes["inner"])
    window = _ring(mine, inner)
    rings = _ring(mine, outer) + window
    within = rings + _parts(mine, outer * inner)
    # A window's ring is made before the ring of the window before it is freed. Pushes share one window of a link.
    more = 0 if share.pushes and inner > 1 else window
    between = rings + more + _parts(mine, (outer - 1) * inner) if outer > 1 else 0
    standing = pushed.ring(mine, outer) + pushed.ring(mine, inner) if share.pushes else 0
    return _around(share, mine, sizes["heads"], max(within, between), standing)


def _loongtrain_backward(share: Share, sizes: dict[str, int]) -> int:
    mine, (outer, inner) = share.by_heads(sizes["heads"]), (sizes["outer"], sizes["inner"])
    if share.pushes and max(outer, inner) > 1:
        return _around_backward(share, mine, sizes["heads"], _double_ring_backward(mine, outer, inner))
    window = _gradient_ring(mine, inner)
    rings = _gradient_ring(mine, outer) + window
    last = mine.kv if outer > 1 else 0  # the gradients of a step of the window before
    within = rings + last + _parts(mine, outer * inner)
    between = rings + window + _parts(mine, (outer - 1) * inner) if outer > 1 else 0
    return _around_backward(share, mine, sizes["heads"], max(within, between))


def _double_ring_backward(mine: Share, outer: int, inner: int) -> int:
    """The rings of `_loongtrain_backward` if they push. A ring of one rank does not."""
    if outer == 1:
        around, before = _gradient_ring(mine, 1), 0
    else:
        around, before = pushed.outer_gradient_ring(mine, outer), mine.wide * mine.kv  # the window before's sum
    if inner > 1:
        return around + before + pushed.gradient_ring(mine, inner, inner=True) + _parts(mine, outer * inner)
    window = _gradient_ring(mine, 1)
    within = around + before + window + mine.kv + _parts(mine, outer)
    return max(within, around + 2 * window + _parts(mine, outer - 1))


def _around(share: Share, mine: Share, ranks: int, inside: int, standing: int) -> int:
    """An exchange of heads in one chunk around the memory of rings, whose windows stand before and after them."""
    whole = mine.q + mine.kv
    if share.pushes and ranks > 1:
        return pushed.exchange(share, mine, inside)
    exchanging = max(3 * share.q + whole, share.q + 2 * whole + _copies(share, mine))
    return max(share.q + whole + inside, standing + exchanging)


def _around_backward(share: Share, mine: Share, ranks: int, inside: int) -> int:
    if share.pushes and ranks > 1:
        return pushed.exchange_backward(share, mine, inside)
    gradients = mine.q + mine.kv  # where they lie side by side to be sent
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q + gradients + max(inside, gradients + sums)


def _copies(share: Share, mine: Share) -> int:
    """Copies of KV heads for several ranks, before they are sent."""
    return mine.kv if mine.kv > share.kv else 0


_Formula = Callable[[Share, dict[str, int]], int]
#: The formulas of the forward and of the backward.
_FORMULAS: Mapping[str, tuple[_Formula, _Formula]] = {
    "ulysses": (_ulysses, _ulysses_backward),
    "ring_p2p": (
        lambda share, sizes: _ring_of(share, sizes["ring"]),
        lambda share, sizes: _ring_backward_of(share, sizes["ring"]),
    ),
    "ring_all_gather": (_all_gather, _all_gather_backward),
    "usp": (_usp, _usp_backward),
    "loongtrain": (_loongtrain, _loongtrain_backward),
}


def _of(strategy: str) -> tuple[_Formula, _Formula]:
    if strategy not in _FORMULAS:
        raise UnknownNameError("strategy", strategy, _FORMULAS)
    return _FORMULAS[strategy]


def _stated(strategy: str) -> Callable[[Problem, Mapping[str, int], bool, Transport], StrategyMemory]:
    """The `memory` function of a strategy's manifest."""

    def memory(
        problem: Problem, axis_sizes: Mapping[str, int], nccl: bool, transport: Transport = Transport.AUTO
    ) -> StrategyMemory:
        forward, backward = (replace(problem, direction=direction) for direction in _DIRECTIONS)
        return StrategyMemory(
            peak_bytes(strategy, forward, axis_sizes, nccl, transport),
            peak_bytes(strategy, backward, axis_sizes, nccl, transport),
            kept_bytes(strategy, problem, axis_sizes),
        )

    return memory


_DIRECTIONS: tuple[Direction, ...] = (Direction.FORWARD, Direction.BACKWARD)

ulysses_memory = _stated("ulysses")
ring_p2p_memory = _stated("ring_p2p")
ring_all_gather_memory = _stated("ring_all_gather")
usp_memory = _stated("usp")
loongtrain_memory = _stated("loongtrain")
