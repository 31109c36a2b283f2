"""Whether a layout that a call was given is one of what the call asks. Ranks find the same, so that none waits."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from longca.errors import RequestError
from longca.manifests import Layout, Problem
from longca.manifests.step_cuts import rank_areas

__all__ = ["check_layout"]


def check_layout(layout: Layout, problem: Problem, strategy: str, sizes: Mapping[str, int]) -> None:
    """Checks that a layout that was given is one of a problem under a strategy.

    Args:
        layout: The layout.
        problem: What is asked of all ranks together.
        strategy: The strategy's name.
        sizes: Ranks along each of its axes.

    Raises:
        RequestError: It is not; the message says what it is of.
    """
    made_for, ask = dict(layout.axis_sizes), "ask longca.layout for the one of this call, or give a placement's name"
    if layout.strategy is not None and (layout.strategy, made_for) != (strategy, dict(sizes)):
        raise RequestError(
            f"this layout is one of {layout.strategy} on {_words(made_for)}, and {strategy} runs on {_words(sizes)} "
            f"here; {ask}"
        )
    ranks, tokens = prod(sizes.values()), problem.concrete_mask.seqlen_q
    if (layout.world_size, layout.num_tokens) != (ranks, tokens):
        of = f"{layout.num_tokens} tokens on {layout.world_size} ranks"
        raise RequestError(f"this layout is of {of}, and the mask of {tokens}, on {ranks}; {ask}")
    ends = ((heads_q[1], heads_kv[1]) for heads_q, heads_kv in layout.table.heads)
    last = max(ends, default=(0, 0))
    if last != (problem.heads_q, problem.num_heads_kv):
        heads = f"{problem.heads_q}:{problem.num_heads_kv} heads"
        raise RequestError(f"this layout is of {last[0]}:{last[1]} heads, and the tensors have {heads}; {ask}")
    if sum(rank_areas(problem, layout)) != problem.area:
        raise RequestError(
            f"this layout is of another mask: its steps are not all that this {problem.concrete_mask.label} shows. Ask "
            "longca.layout for this mask too; placed contiguous or zigzag, ranks hold the same tokens of both"
        )


def _words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())
