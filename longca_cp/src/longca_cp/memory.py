"""Memory: the bytes of one call of a strategy on one rank at its peak, beyond its arguments. Torch-free.

The formulas count the allocations of the strategies with their results. They leave out the log-sum-exps (4 bytes for a
query and head) and the kernel's own allocations. They assume that no step is empty, and that every tensor needs
reordering, and so are upper bounds.

    Q, KV   a rank's queries, and its keys and values together, in bytes
    w       ratio of the bytes of a sum's element to the bytes of an element: 2 for bfloat16
    ρ       copies of a KV head if there are fewer heads than ranks that share them, or else 1
    E       Q + ρKV: queries, keys and values of a rank's heads and its group's tokens
    c       chunks of heads that take turns

The formulas are in `longca_cp.peaks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longca.errors import UnknownNameError
from longca.manifests import Problem, StrategyMemory, Transport
from longca.manifests.problem import Direction
from longca_cp.peaks import PEAKS, Formula
from longca_cp.pushes import axes_with_links
from longca_cp.share import Share

__all__ = [
    "kept_bytes",
    "loongtrain_memory",
    "peak_bytes",
    "ring_all_gather_memory",
    "ring_p2p_memory",
    "ulysses_memory",
    "usp_memory",
]


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
    forward, backward = _of(strategy)
    formula = forward if problem.direction == "forward" else backward
    pushes = axes_with_links(transport, axis_sizes, nccl)
    return formula(Share.of(problem, axis_sizes, nccl, pushes), dict(axis_sizes))


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


def _of(strategy: str) -> tuple[Formula, Formula]:
    if strategy not in PEAKS:
        raise UnknownNameError("strategy", strategy, PEAKS)
    return PEAKS[strategy]


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
