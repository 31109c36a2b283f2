"""Shares: the heads dealt to ranks for verifying, each rank all tokens of its own.

Heads are apart from one another, so ranks can compute the reference of a case together, each for its heads; and what a
strategy gives, which ranks hold by tokens, goes to those that can judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from longca.manifests import Layout, Problem
from longca_bench.ranks.world import World
from longca_bench.verification.head_sample import sample_heads
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.verify import Finding

__all__ = ["Share", "by_heads", "shares", "verified_heads"]

_OF_KEYS = ("k", "v", "dk", "dv")


@dataclass(frozen=True)
class Share:
    """Some neighbouring KV heads, with their query heads.

    Attributes:
        heads_q: (start, stop) of the query heads.
        heads_kv: (start, stop) of the KV heads.
    """

    heads_q: tuple[int, int]
    heads_kv: tuple[int, int]

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return self.heads_kv[0] == self.heads_kv[1]

    def heads(self, name: str) -> slice:
        """Which heads of a tensor they are, by the tensor's name."""
        return slice(*(self.heads_kv if name in _OF_KEYS else self.heads_q))

    def problem(self, problem: Problem) -> Problem:
        """What a problem asks of these heads."""
        return problem.narrowed(range(*self.heads_q), range(*self.heads_kv))

    def inputs(self, inputs: Inputs) -> Inputs:
        """These heads' tensors, in memory of their own."""
        names = ("q", "k", "v", "dout")
        return Inputs(*(getattr(inputs, name)[:, self.heads(name)].contiguous() for name in names))

    def named(self, finding: Finding) -> Finding:
        """What was found of these heads, with the head's number among all."""
        return replace(finding, head=finding.head + self.heads(finding.tensor.split()[0]).start)


def shares(problem: Problem, ranks: int) -> list[Share]:
    """Every rank's share: KV heads as equally as can be, none for some where there are fewer than ranks.

    Of problems so large that some heads stand for all, each rank has the first of its own, and the last rank the last.
    """
    count, sample = problem.num_heads_kv, sample_heads(problem)
    most = count if sample is None else max(1, len(sample.heads_kv) // ranks)
    group, bounds = problem.heads_q // count, [count * rank // ranks for rank in range(ranks + 1)]
    dealt = [(start, min(stop, start + most)) for start, stop in pairwise(bounds)]
    dealt[-1] = max(bounds[-2], count - most), count
    return [Share((start * group, stop * group), (start, stop)) for start, stop in dealt]


def verified_heads(problem: Problem, dealt: Sequence[Share]) -> tuple[int, ...] | None:
    """The KV heads that ranks verify together; None for all."""
    heads = tuple(head for share in dealt for head in range(*share.heads_kv))
    return None if len(heads) == problem.num_heads_kv else heads


def by_heads(
    name: str, mine: Tensor, layout: Layout, places: Sequence[int], dealt: list[Share], world: World
) -> Tensor:
    """Brings every rank all tokens of its heads.

    Args:
        name: `out`, `lse`, `dq`, `dk` or `dv`.
        mine: This rank's tokens of all heads: [Tl, H, D], or [Hq, Tl] of an lse.
        layout: Which tokens are held where.
        places: Each rank's place in the layout.
        dealt: Every rank's share.
        world: The ranks, which all call this.

    Returns:
        All tokens, in order, of this rank's heads: [T, H of the share, D], or [Hq of the share, T].
    """
    rows = mine.T[..., None] if name == "lse" else mine
    wanted = [share.heads(name) for share in dealt]
    counts = [each.stop - each.start for each in wanted]
    width, own = rows.shape[2], counts[world.rank]
    sent = torch.cat([rows[:, heads].reshape(-1) for heads in wanted])
    tokens = [layout.shard_size(place) for place in places]
    sizes_in = [count * own * width for count in tokens]
    received = world.all_to_all(sent, [len(rows) * count * width for count in counts], sizes_in)
    parts = [part.view(count, own, width) for part, count in zip(received.split(sizes_in), tokens, strict=True)]
    whole = layout.unshard([part for _, part in sorted(zip(places, parts, strict=True), key=lambda pair: pair[0])])
    return whole[..., 0].T.contiguous() if name == "lse" else whole
