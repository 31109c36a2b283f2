"""Shares: the heads that each rank verifies, over all tokens.

Heads do not depend on each other, so ranks compute the reference of a case together, each for its own heads. Ranks hold
a strategy's results by tokens. `by_heads` moves them to the ranks that have the heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import torch
from torch import Tensor

from longca.manifests import Layout, Problem
from longca_bench.measuring.world import World
from longca_bench.verification.findings import Finding
from longca_bench.verification.head_sample import sample_heads
from longca_bench.verification.inputs import Inputs

__all__ = ["Share", "by_heads", "held_tokens", "shares", "shares_of_all", "worst"]

_OF_KEYS = ("k", "v", "dk", "dv")


@dataclass(frozen=True)
class Share:
    """Neighbouring KV heads, with their query heads.

    Attributes:
        heads_q: (start, stop) of the query heads.
        heads_kv: (start, stop) of the KV heads.
    """

    heads_q: tuple[int, int]
    heads_kv: tuple[int, int]

    @property
    def is_empty(self) -> bool:
        """Whether it has no head."""
        return self.heads_kv[0] == self.heads_kv[1]

    def heads(self, name: str) -> slice:
        """The heads of a tensor, by the tensor's name."""
        return slice(*(self.heads_kv if name in _OF_KEYS else self.heads_q))

    def problem(self, problem: Problem) -> Problem:
        """The problem of these heads alone."""
        if self == Share((0, problem.heads_q), (0, problem.num_heads_kv)):
            return problem
        return problem.narrowed(range(*self.heads_q), range(*self.heads_kv))

    def inputs(self, inputs: Inputs) -> Inputs:
        """The tensors of these heads. They have memory of their own, unless the share has all heads."""
        names = ("q", "k", "v", "dout")
        return Inputs(*(getattr(inputs, name)[:, self.heads(name)].contiguous() for name in names))

    def named(self, finding: Finding) -> Finding:
        """A finding in this share, with the head's number among all heads."""
        return replace(finding, head=finding.head + self.heads(finding.tensor.split()[0]).start)


def shares(problem: Problem, ranks: int, random: Random) -> list[Share]:
    """Every rank's share of the heads that are verified. A share is empty if ranks outnumber the KV heads.

    For a problem so large that some heads stand for all, each rank has neighbours among its heads of `shares_of_all`.
    They are drawn. One rank has all heads, because a reference samples heads itself.

    Args:
        problem: The problem of all ranks together.
        ranks: Number of ranks.
        random: The source of random numbers. It is the same on all ranks.
    """
    everything = shares_of_all(problem, ranks)
    sample = None if ranks == 1 else sample_heads(problem, random)
    if sample is None:
        return everything
    group, most = problem.heads_q // problem.num_heads_kv, max(1, len(sample.heads_kv) // ranks)
    return _dealt((_some(most, *share.heads_kv, random) for share in everything), group)


def shares_of_all(problem: Problem, ranks: int) -> list[Share]:
    """Every rank's share of all heads, dealt as equally as possible.

    Args:
        problem: The problem of all ranks together.
        ranks: Number of ranks.
    """
    count = problem.num_heads_kv
    group, bounds = problem.heads_q // count, [count * rank // ranks for rank in range(ranks + 1)]
    return _dealt(pairwise(bounds), group)


def _dealt(heads_kv: Iterable[tuple[int, int]], group: int) -> list[Share]:
    return [Share((start * group, stop * group), (start, stop)) for start, stop in heads_kv]


def _some(most: int, start: int, stop: int, random: Random) -> tuple[int, int]:
    """The verified heads among those of a rank, which are drawn."""
    if stop - start <= most:
        return start, stop
    first = random.randint(start, stop - most)
    return first, first + most


def held_tokens(layout: Layout, places: Sequence[int]) -> list[Tensor]:
    """The tokens that each rank holds, in the order of its rows.

    Args:
        layout: The tokens of each place.
        places: Each rank's place in the layout.
    """
    return [torch.from_numpy(layout.positions(place)) for place in places]


def by_heads(name: str, mine: Tensor, held: Sequence[Tensor], dealt: Sequence[Share], world: World) -> Tensor:
    """Sends every rank the tokens of its heads. All ranks call this.

    Args:
        name: `out`, `lse`, `dq`, `dk` or `dv`.
        mine: This rank's tokens of all heads: [Tl, H, D], or [Hq, Tl] for an lse.
        held: The tokens that each rank gives, in the order of its rows.
        dealt: Every rank's share.
        world: The ranks.

    Returns:
        The tokens of all ranks, in order, of this rank's heads: [T, H of the share, D], or [Hq of the share, T].
    """
    rows = mine.T[..., None] if name == "lse" else mine
    wanted = [share.heads(name) for share in dealt]
    counts = [each.stop - each.start for each in wanted]
    width, own = rows.shape[2], counts[world.rank]
    sent = torch.cat([rows[:, heads].reshape(-1) for heads in wanted])
    sizes_in = [len(tokens) * own * width for tokens in held]
    received = world.all_to_all(sent, [len(rows) * count * width for count in counts], sizes_in)
    order = torch.cat([*held]).argsort().to(rows.device)
    parts = [part.view(len(tokens), own, width) for part, tokens in zip(received.split(sizes_in), held, strict=True)]
    whole = torch.cat(parts)[order]
    return whole[..., 0].T.contiguous() if name == "lse" else whole


def worst(found: Iterable[Iterable[Finding]]) -> tuple[Finding, ...]:
    """The worst finding of each tensor, among the findings of several ranks. A tensor may fail on several ranks."""
    kept: dict[str, Finding] = {}
    for finding in (finding for findings in found for finding in findings):
        last = kept.get(finding.tensor)
        if last is None or _badness(finding) > _badness(last):
            kept[finding.tensor] = finding
    failed = {finding.tensor.partition(" on rank ")[0] for finding in kept.values() if not finding.passed}
    return tuple(finding for finding in kept.values() if not finding.passed or finding.tensor not in failed)


def _badness(finding: Finding) -> tuple[bool, float]:
    return not finding.passed, finding.closeness
