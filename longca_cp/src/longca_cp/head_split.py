"""Splitting heads over ranks: query heads in equal parts, and with each part the KV heads that it attends to."""

from __future__ import annotations

from longca.errors import UnsupportedError
from longca.manifests import Problem

__all__ = ["HeadRanges", "split_heads"]

#: (start, stop) of a rank's query heads, and of its KV heads.
HeadRanges = tuple[tuple[int, int], tuple[int, int]]


def split_heads(problem: Problem, ranks: int, axis: str) -> tuple[HeadRanges, ...]:
    """Each rank's heads, in order.

    Where there are fewer KV heads than ranks, several ranks have the same one: it is replicated, and its gradients are
    summed over them.

    Args:
        problem: How many heads there are.
        ranks: How many ranks share them.
        axis: The mesh axis of these ranks, for the message.

    Raises:
        UnsupportedError: Query heads do not divide among the ranks, or the parts do not fit the groups of GQA.
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
