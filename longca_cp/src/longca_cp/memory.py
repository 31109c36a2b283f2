"""Memory: the bytes of one call of a strategy on one rank at its peak, beyond its arguments. Torch-free.

The formulas count tensors and exchange buffers from shapes, with the results. They leave out the log-sum-exps (4 bytes
for a query and head) and the kernel's own allocations. They assume that no step is empty, and that every tensor needs
reordering, and so are upper bounds. A test compares them with the allocations of the strategies.

An axis with a link pushes into windows of its peers. A window counts as if a call made it, though all calls share it:
two slots of keys and values for a ring or for a gather, and as many for parts of their gradients. For an exchange of
heads it has room for the tensors there and for the results back. A ring of one rank pushes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from longca.manifests import Problem, StrategyMemory, Transport
from longca.manifests.offers import DTYPE_BYTES
from longca.manifests.problem import Direction
from longca_cp.block_placement import most_tokens
from longca_cp.overlap import SLOTS, axes_with_links, chunks_around_rings, gather_chunks, ulysses_chunks

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
SUMMED = 3

#: The axes of rings. A placement deals tokens to parts along them.
_RINGS = ("ring", "outer", "inner")
#: The axis along which a strategy exchanges heads.
_HEADS = {"ulysses": "ulysses", "usp": "ulysses", "loongtrain": "heads"}

_Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Share:
    """A rank's share of a problem."""

    q: int  # bytes of its queries
    out: int  # bytes of its output
    kv: int  # bytes of its keys and values together
    wide: int  # bytes of a sum's element over those of an element
    heads_kv: int
    problem: Problem  # of all ranks together
    nccl: bool
    pushes: frozenset[str] = frozenset()  # the axes with links

    @classmethod
    def of(cls, problem: Problem, axis_sizes: _Sizes, nccl: bool, pushes: frozenset[str] = frozenset()) -> Share:
        """The largest share of any rank."""
        size, ranks = DTYPE_BYTES[problem.dtype], prod(axis_sizes.values())
        parts = prod(axis_sizes.get(axis, 1) for axis in _RINGS)
        tokens, heads_kv = most_tokens(problem.concrete_mask, parts, ranks) * size, problem.num_heads_kv
        q, out = (tokens * problem.heads_q * dim for dim in problem.dims)
        kv = tokens * heads_kv * sum(problem.dims)
        return cls(q, out, kv, max(1, 4 // size), heads_kv, problem, nccl, pushes)

    @property
    def whole(self) -> int:
        """Bytes of queries, keys and values."""
        return self.q + self.kv

    def by_heads(self, ranks: int) -> Share:
        """The share after an exchange of heads among `ranks` ranks. Only copies of KV heads change its bytes."""
        copies = max(1, ranks // self.heads_kv)
        return replace(self, kv=copies * self.kv, heads_kv=max(1, self.heads_kv // ranks))

    def around_rings(self, sizes: _Sizes, axis: str) -> tuple[Share, Share]:
        """The share after an exchange of heads along an axis, and one of its chunks that go round rings."""
        mine, ranks = self.by_heads(sizes[axis]), sizes[axis]
        count = chunks_around_rings(self.problem, ranks, prod(sizes.values()) // ranks, axis in self.pushes)
        return mine, replace(mine, **{x: getattr(mine, x) // count for x in ("q", "out", "kv", "heads_kv")})

    def partials(self, steps: int) -> int:
        """Partial results, as multiples of the result that the first becomes: two of them, and from three on a sum."""
        return min(2, steps) + (self.wide if steps >= SUMMED else 0)

    def window(self, axis: str, ranks: int) -> int:
        """The window of a ring that pushes, which stands between calls."""
        return min(SLOTS, ranks - 1) * self.kv if axis in self.pushes else 0

    def ring(self, axis: str, ranks: int) -> int:
        """Two buffers of keys and values, or the window of pushes."""
        return self.window(axis, ranks) if axis in self.pushes or ranks == 1 else 2 * self.kv

    def gradient_ring(self, axis: str, ranks: int, inner: bool = False) -> int:
        """The same with a step's gradients and their sums. Pushes of an inner ring always end with a sum in float32."""
        if axis not in self.pushes and ranks > 1:
            return (3 + 2 * self.wide) * self.kv
        sums = self.wide if inner or ranks >= SUMMED else 0
        return 2 * self.window(axis, ranks) + (min(2, ranks) + sums) * self.kv


def _ulysses(share: Share, sizes: _Sizes) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if "ulysses" in share.pushes:
        return _exchange(share, mine, "ulysses", mine.out)
    chunks = ulysses_chunks(share.problem, sizes["ulysses"], share.nccl, pushes=False)
    # Either two chunks' q, k and v leave and arrive. Or one chunk is computed, one moves, and an output returns.
    exchanging = min(2, chunks) * 2 * mine.whole // chunks + _copies(share, mine)
    computing = ((2 * chunks - 1) * mine.whole + 2 * mine.out) // chunks
    return share.out + max(exchanging, computing)


def _ulysses_backward(share: Share, sizes: _Sizes) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if "ulysses" in share.pushes:
        return _exchange_backward(share, mine, "ulysses", 0)
    chunks = ulysses_chunks(share.problem, sizes["ulysses"], share.nccl, pushes=False)
    # Gradients by heads, and as they arrive by tokens.
    return share.whole + mine.out // chunks + 2 * mine.whole + _sums(share, mine)


def _ring_p2p(share: Share, sizes: _Sizes) -> int:
    return share.ring("ring", sizes["ring"]) + share.partials(sizes["ring"]) * share.out


def _ring_p2p_backward(share: Share, sizes: _Sizes) -> int:
    return share.gradient_ring("ring", sizes["ring"]) + share.partials(sizes["ring"]) * share.q


def _all_gather(share: Share, sizes: _Sizes) -> int:
    pushes, ranks = "ring" in share.pushes, sizes["ring"]
    chunks = gather_chunks(share.problem, share.nccl, pushes)
    if pushes:
        return share.out + min(SLOTS, chunks) * ranks * share.kv // chunks
    # A chunk as received and in order, the next one on its way, and the last one until this one has arrived.
    return share.out + min(chunks + 1, 4) * (ranks * share.kv // chunks) + share.kv // chunks


def _all_gather_backward(share: Share, sizes: _Sizes) -> int:
    pushes, ranks, wide = "ring" in share.pushes, sizes["ring"], share.wide
    chunks = gather_chunks(share.problem, share.nccl, pushes)
    mine, all_of = share.kv // chunks, ranks * share.kv // chunks
    if pushes:
        sums = wide * mine if ranks >= SUMMED else 0
        return share.whole + min(SLOTS, chunks) * (3 * ranks - 1) * mine + sums
    at_hand = 3 * all_of + wide * all_of  # a chunk, its gradients, these in their owners' order, and wide
    coming = all_of + mine if chunks > 2 else 0
    leaving = wide * (all_of + mine) if chunks > 1 else 0
    return share.whole + at_hand + coming + leaving + wide * mine


def _usp(share: Share, sizes: _Sizes) -> int:
    (mine, chunk), ring = share.around_rings(sizes, "ulysses"), sizes["ring"]
    inside = mine.out - chunk.out + _ring_p2p(chunk, sizes)
    return _exchange(share, mine, "ulysses", inside, mine.window("ring", ring))


def _usp_backward(share: Share, sizes: _Sizes) -> int:
    mine, chunk = share.around_rings(sizes, "ulysses")
    return _exchange_backward(share, mine, "ulysses", _ring_p2p_backward(chunk, sizes) if sizes["ring"] > 1 else 0)


def _loongtrain(share: Share, sizes: _Sizes) -> int:
    (mine, chunk), (outer, inner) = share.around_rings(sizes, "heads"), (sizes["outer"], sizes["inner"])
    window = chunk.ring("inner", inner)
    rings = mine.out - chunk.out + chunk.ring("outer", outer) + window  # with the results of the chunks before
    # A window's ring is made before the ring of the window before it is freed. Pushes share one window of a link.
    more = 0 if "inner" in share.pushes else window
    between = rings + more + chunk.partials((outer - 1) * inner) * chunk.out if outer > 1 else 0
    standing = mine.window("outer", outer) + mine.window("inner", inner)
    return _exchange(share, mine, "heads", max(rings + chunk.partials(outer * inner) * chunk.out, between), standing)


def _loongtrain_backward(share: Share, sizes: _Sizes) -> int:
    (mine, chunk), (outer, inner) = share.around_rings(sizes, "heads"), (sizes["outer"], sizes["inner"])
    if outer * inner == 1:
        return _exchange_backward(share, mine, "heads", 0)
    around = chunk.gradient_ring("outer", outer)
    if outer == 1 or "outer" in share.pushes:  # its parts are sums already, and the inner ring counts the newest
        around = (1 + chunk.wide) * chunk.window("outer", outer) + (chunk.wide * chunk.kv if outer >= SUMMED else 0)
    window = chunk.gradient_ring("inner", inner, inner=True)
    within = around + window + chunk.partials(outer * inner) * chunk.q
    if outer > 1 and share.pushes & {"outer", "inner"}:
        within += chunk.wide * chunk.kv  # the sum of the window before
    if "inner" in share.pushes or inner == 1:
        return _exchange_backward(share, mine, "heads", within)
    within += chunk.kv  # the gradients of a step of the window before, or with one window the results
    between = around + 2 * window + chunk.partials((outer - 1) * inner) * chunk.q if outer > 1 else 0
    return _exchange_backward(share, mine, "heads", max(within, between))


def _exchange(share: Share, mine: Share, axis: str, inside: int, standing: int = 0) -> int:
    """An exchange of heads around calls on heads, where windows of rings stand before and after these."""
    if axis in share.pushes:  # output by tokens, the window, and results by heads
        return share.out + mine.whole + mine.out + inside
    exchanging = max(3 * share.out + mine.whole, share.out + 2 * mine.whole + _copies(share, mine))
    return max(share.out + mine.whole + inside, standing + exchanging)


def _exchange_backward(share: Share, mine: Share, axis: str, inside: int) -> int:
    """Gradients by tokens, and by heads side by side, around the calls on heads."""
    if axis in share.pushes:
        return share.whole + mine.out + 2 * mine.whole + max(inside, _sums(share, mine))
    return share.whole + mine.out + mine.whole + max(inside, mine.whole + _sums(share, mine))


def _copies(share: Share, mine: Share) -> int:
    """Copies of KV heads for several ranks, before they are sent."""
    return mine.kv if mine.kv > share.kv else 0


def _sums(share: Share, mine: Share) -> int:
    """The wide sum of the gradients of keys, or of values, over ranks that have the same head."""
    dims = share.problem.dims
    return share.wide * share.kv * max(dims) // sum(dims) if mine.kv > share.kv else 0


#: The formulas of the forward and of the backward.
_PEAKS: Mapping[str, tuple[Callable[[Share, _Sizes], int], Callable[[Share, _Sizes], int]]] = {
    "ulysses": (_ulysses, _ulysses_backward),
    "ring_p2p": (_ring_p2p, _ring_p2p_backward),
    "ring_all_gather": (_all_gather, _all_gather_backward),
    "usp": (_usp, _usp_backward),
    "loongtrain": (_loongtrain, _loongtrain_backward),
}


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
        transport: The way to move tensors. `auto` counts as on GPUs of one host.

    Returns:
        Bytes beyond q, k and v, the gradient of the output and the tensors that the forward kept. They do not count
        the log-sum-exps and the kernel's own allocations.
    """
    formula = _PEAKS[strategy][problem.direction != "forward"]
    return formula(Share.of(problem, axis_sizes, nccl, axes_with_links(transport, axis_sizes, nccl)), axis_sizes)


def kept_bytes(strategy: str, problem: Problem, axis_sizes: Mapping[str, int]) -> int:
    """Bytes that a forward keeps for the backward beyond q, k, v and the output: q, k, v and out by heads."""
    if (axis := _HEADS.get(strategy)) is None:
        return 0
    share = Share.of(problem, axis_sizes, nccl=False).by_heads(axis_sizes[axis])
    return share.out + share.whole


def _memory(
    strategy: str, problem: Problem, axis_sizes: _Sizes, nccl: bool, transport: Transport = Transport.AUTO
) -> StrategyMemory:
    """The `memory` function of a strategy's manifest."""
    forward, backward = (
        peak_bytes(strategy, problem.in_direction(direction), axis_sizes, nccl, transport)
        for direction in (Direction.FORWARD, Direction.BACKWARD)
    )
    return StrategyMemory(forward, backward, kept_bytes(strategy, problem, axis_sizes))


ulysses_memory = partial(_memory, "ulysses")
ring_p2p_memory = partial(_memory, "ring_p2p")
ring_all_gather_memory = partial(_memory, "ring_all_gather")
usp_memory = partial(_memory, "usp")
loongtrain_memory = partial(_memory, "loongtrain")
