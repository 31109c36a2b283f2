"""Memory: the bytes of one call of a strategy on one rank at its peak, beyond its arguments. Torch-free.

The formulas count tensors and exchange buffers from shapes, with the results. They leave out the log-sum-exps (4 bytes
for a query and head) and the kernel's own allocations. They assume that no step is empty, and that every tensor needs
reordering, and so are upper bounds. A test compares them with the allocations of the strategies.

    Q, KV   a rank's queries, and its keys and values together, in bytes
    w       ratio of the bytes of a sum's element to the bytes of an element: 2 for bfloat16
    ρ       copies of a KV head if there are fewer heads than ranks that share them, or else 1
    E       Q + ρKV: queries, keys and values of a rank's heads and its group's tokens
    c       chunks of heads that take turns

An axis with a link pushes into windows of its peers. A window counts as if a call made it, though all calls share it. A
ring of one rank pushes nothing, and has these formulas too:

| part | window | beside it |
|---|---|---|
| ring, n ranks | min(2, n − 1) KV | nothing: the first step reads k and v as they lie |
| its gradients | as much, for parts of gradients | two parts, and from three ranks on a sum in float32 |
| gather in c chunks | min(2, c) chunks of all keys and values | nothing |
| its gradients | min(2, c) chunks of others' parts | as many chunks' gradients, and a sum from three ranks on |
| exchange of heads | E there and Q back. In the backward Q there and E back | results by heads, until the call ends |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from longca.errors import UnknownNameError
from longca.manifests import Problem, StrategyMemory, Transport
from longca.manifests.offers import DTYPE_BYTES
from longca.manifests.problem import Direction
from longca_cp.block_placement import most_tokens
from longca_cp.overlap import SLOTS, chunks_around_rings, gather_chunks, ulysses_chunks
from longca_cp.pushes import axes_with_links

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
        pushes: The axes with links.
    """

    q: int
    kv: int
    wide: int
    heads_kv: int
    problem: Problem
    nccl: bool
    pushes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, problem: Problem, axis_sizes: Mapping[str, int], nccl: bool, pushes: frozenset[str] = frozenset()
    ) -> Share:
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


#: From this number of partial results on, their sum is a tensor of its own.
_SUMMED = 3


def _pushed_ring(share: Share, ranks: int) -> int:
    """Keys and values of a ring."""
    return min(SLOTS, ranks - 1) * share.kv


def _pushed_gradient_ring(share: Share, ranks: int, inner: bool = False) -> int:
    """Keys and values of a ring, and their gradients. An inner ring always ends with a sum in float32."""
    sums = share.wide if inner or ranks >= _SUMMED else 0
    return 2 * _pushed_ring(share, ranks) + (min(2, ranks) + sums) * share.kv


def _pushed_outer_gradient_ring(share: Share, ranks: int) -> int:
    """The same of a ring around rings, whose parts are sums already. The inner ring counts the newest part."""
    sums = share.wide * share.kv if ranks >= _SUMMED else 0
    return (1 + share.wide) * _pushed_ring(share, ranks) + sums


def _pushed_gather(share: Share, ranks: int, chunks: int) -> int:
    """Output, keys and values of a gather."""
    return share.q + min(SLOTS, chunks) * ranks * share.kv // chunks


def _pushed_gather_backward(share: Share, ranks: int, chunks: int) -> int:
    """Gradients, keys and values of a gather."""
    slots, mine = min(SLOTS, chunks), share.kv // chunks
    sums = share.wide * mine if ranks >= _SUMMED else 0
    return share.q + share.kv + slots * (2 * ranks + ranks - 1) * mine + sums


def _pushed_exchange(share: Share, mine: Share, inside: int) -> int:
    """Output by tokens, the window, and the calls on heads, whose results are pushed until the end."""
    return share.q + (mine.q + mine.kv) + mine.q + inside


def _pushed_exchange_backward(share: Share, mine: Share, inside: int) -> int:
    """Gradients by tokens, the window, gradients by heads side by side, and the calls on heads."""
    whole = mine.q + mine.kv
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q + whole + whole + max(inside, sums)


def _ulysses(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if "ulysses" in share.pushes:
        return _pushed_exchange(share, mine, mine.q)
    chunks, whole = ulysses_chunks(share.problem, sizes["ulysses"], share.nccl, pushes=False), mine.q + mine.kv
    # Either two chunks' q, k and v leave and arrive. Or one chunk is computed, one moves, and an output returns.
    exchanging = min(2, chunks) * 2 * whole // chunks + _copies(share, mine)
    computing = ((2 * chunks - 1) * whole + 2 * mine.q) // chunks
    return share.q + max(exchanging, computing)


def _ulysses_backward(share: Share, sizes: dict[str, int]) -> int:
    mine = share.by_heads(sizes["ulysses"])
    if "ulysses" in share.pushes:
        return _pushed_exchange_backward(share, mine, 0)
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
        return _pushed_ring(share, ranks)
    return 2 * share.kv


def _standing(share: Share, axis: str, ranks: int) -> int:
    """The window of a ring that pushes, which stands between calls."""
    return _pushed_ring(share, ranks) if axis in share.pushes else 0


def _gradient_ring(share: Share, axis: str, ranks: int) -> int:
    if axis in share.pushes or ranks == 1:
        return _pushed_gradient_ring(share, ranks)
    return (3 + 2 * share.wide) * share.kv


def _all_gather(share: Share, sizes: dict[str, int]) -> int:
    pushes = "ring" in share.pushes
    chunks = gather_chunks(share.problem, share.nccl, pushes)
    if pushes:
        return _pushed_gather(share, sizes["ring"], chunks)
    mine, all_of = share.kv // chunks, sizes["ring"] * share.kv // chunks
    # A chunk as received and in order, the next one on its way, and the last one until this one has arrived.
    return share.q + min(chunks + 1, 4) * all_of + mine


def _all_gather_backward(share: Share, sizes: dict[str, int]) -> int:
    pushes = "ring" in share.pushes
    chunks, wide = gather_chunks(share.problem, share.nccl, pushes), share.wide
    if pushes:
        return _pushed_gather_backward(share, sizes["ring"], chunks)
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
    around = _pushed_outer_gradient_ring(chunk, outer) if alone else _gradient_ring(chunk, "", outer)
    before = chunk.wide * chunk.kv if outer > 1 and share.pushes & {"outer", "inner"} else 0  # the window before's sum
    if "inner" in share.pushes or inner == 1:
        rings = around + before + _pushed_gradient_ring(chunk, inner, inner=True)
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
        return _pushed_exchange(share, mine, inside)
    exchanging = max(3 * share.q + whole, share.q + 2 * whole + _copies(share, mine))
    return max(share.q + whole + inside, standing + exchanging)


def _around_backward(share: Share, mine: Share, axis: str, inside: int) -> int:
    if axis in share.pushes:
        return _pushed_exchange_backward(share, mine, inside)
    gradients = mine.q + mine.kv  # where they lie side by side to be sent
    sums = share.wide * share.kv // 2 if mine.kv > share.kv else 0
    return share.q + share.kv + mine.q + gradients + max(inside, gradients + sums)


def _copies(share: Share, mine: Share) -> int:
    """Copies of KV heads for several ranks, before they are sent."""
    return mine.kv if mine.kv > share.kv else 0


#: From a share and the ranks along each axis to bytes.
_Formula = Callable[[Share, dict[str, int]], int]
#: The formulas of the forward and of the backward.
_PEAKS: Mapping[str, tuple[_Formula, _Formula]] = {
    "ulysses": (_ulysses, _ulysses_backward),
    "ring_p2p": (
        lambda share, sizes: _ring_of(share, sizes["ring"]),
        lambda share, sizes: _ring_backward_of(share, sizes["ring"]),
    ),
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

    Raises:
        UnknownNameError: The strategy is not in this distribution.
    """
    if strategy not in _PEAKS:
        raise UnknownNameError("strategy", strategy, _PEAKS)
    forward, backward = _PEAKS[strategy]
    formula = forward if problem.direction == "forward" else backward
    pushes = axes_with_links(transport, axis_sizes, nccl)
    return formula(Share.of(problem, axis_sizes, nccl, pushes), dict(axis_sizes))


def kept_bytes(strategy: str, problem: Problem, axis_sizes: Mapping[str, int]) -> int:
    """Bytes that a forward keeps for the backward beyond q, k, v and the output: E and the output by heads, or none.

    Args:
        strategy: One of this distribution's strategies.
        problem: The problem of all ranks together.
        axis_sizes: Ranks along each of the strategy's axes.

    """
    axis = {"ulysses": "ulysses", "usp": "ulysses", "loongtrain": "heads"}.get(strategy)
    if axis is None:
        return 0
    share = Share.of(problem, axis_sizes, nccl=False).by_heads(axis_sizes[axis])
    return 2 * share.q + share.kv


def _stated(strategy: str) -> Callable[[Problem, Mapping[str, int], bool, Transport], StrategyMemory]:
    """The `memory` function of a strategy's manifest."""

    def memory(
        problem: Problem, axis_sizes: Mapping[str, int], nccl: bool, transport: Transport = Transport.AUTO
    ) -> StrategyMemory:
        forward, backward = (problem.in_direction(direction) for direction in _DIRECTIONS)
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
