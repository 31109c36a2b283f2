"""Shares: the heads that each rank verifies, over all tokens, and the inputs and the reference that cases share.

Heads do not depend on each other, so ranks compute the reference of a case together, each for its own heads. Ranks hold
a strategy's results by tokens. `by_heads` moves them to the ranks that have the heads.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random, SystemRandom
from typing import Any

import torch
from torch import Tensor

from longca.manifests import Direction, Layout, Problem
from longca_bench.measuring.world import World
from longca_bench.suites.case import Case
from longca_bench.verification.findings import Finding
from longca_bench.verification.head_sample import HeadSample, sample_heads
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import Reference, reference

__all__ = ["InputCache", "SharedInputs", "by_heads", "held_tokens", "numbered", "shares", "shares_of_all", "worst"]


def shares(problem: Problem, ranks: int, random: Random) -> list[HeadSample]:
    """Every rank's share of the heads that are verified. A share is empty if ranks outnumber the KV heads.

    For a problem so large that some heads stand for all, each rank has neighbours among its heads of `shares_of_all`.
    They are drawn from a random source that is the same on all ranks. One rank has all heads, because a reference
    samples heads itself.
    """
    everything = shares_of_all(problem, ranks)
    sample = None if ranks == 1 else sample_heads(problem, random)
    if sample is None:
        return everything
    group, most = problem.heads_q // problem.num_heads_kv, max(1, len(sample.heads_kv) // ranks)
    firsts = [random.randint(0, max(0, len(share.heads_kv) - most)) for share in everything]
    some = zip(everything, firsts, strict=True)
    return [HeadSample.grouped(share.heads_kv[first : first + most], group) for share, first in some]


def shares_of_all(problem: Problem, ranks: int) -> list[HeadSample]:
    """Every rank's share of all heads, dealt as equally as possible."""
    count = problem.num_heads_kv
    group, bounds = problem.heads_q // count, [count * rank // ranks for rank in range(ranks + 1)]
    return [HeadSample.grouped(range(*each), group) for each in pairwise(bounds)]


def held_tokens(layout: Layout, places: Sequence[int]) -> list[Tensor]:
    """The tokens that each rank holds, in the order of its rows, by its place in the layout."""
    return [torch.from_numpy(layout.positions(place)) for place in places]


def by_heads(name: str, mine: Tensor, held: Sequence[Tensor], dealt: Sequence[HeadSample], world: World) -> Tensor:
    """Sends every rank the tokens of its heads. All ranks call this.

    This rank gives its tokens of all heads: [Tl, H, D], or [Hq, Tl] for an lse. `held` has the tokens of each rank's
    rows, and `dealt` every rank's share. Returns all tokens, in order, of this rank's heads: [T, H of the share, D], or
    [Hq of the share, T].
    """
    width, own = 1 if name == "lse" else mine.shape[2], len(dealt[world.rank].indices(name))
    theirs = [share.of(name, mine) for share in dealt]
    sent = [(part.T if name == "lse" else part).reshape(-1) for part in theirs]
    sizes_in = [len(tokens) * own * width for tokens in held]
    received = world.all_to_all(torch.cat(sent), [len(part) for part in sent], sizes_in)
    order = torch.cat([*held]).argsort().to(mine.device)
    parts = [part.view(len(tokens), own, width) for part, tokens in zip(received.split(sizes_in), held, strict=True)]
    whole = torch.cat(parts)[order]
    return whole[..., 0].T.contiguous() if name == "lse" else whole


def numbered(finding: Finding, share: HeadSample) -> Finding:
    """A finding in a share, with the head's number among all heads."""
    return replace(finding, head=share.indices(finding.tensor.split()[0])[finding.head])


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


@dataclass(frozen=True)
class SharedInputs:
    """The inputs and the reference of one mask and shape on this rank.

    `inputs` has all tokens and heads, `shares` the heads that each rank verifies, and `mine` and `expected` this rank's
    heads: None if it has none. `kept` has results that the cases of one kernel and direction share.
    """

    inputs: Inputs
    shares: list[HeadSample]
    mine: Inputs
    expected: Reference | None
    kept: dict[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def verified_kv_heads(self) -> tuple[int, ...] | None:
        """The KV heads that ranks verify together, or None if they verify all heads."""
        if len(self.shares) == 1:
            sample = self.expected.sample if self.expected is not None else None
            return None if sample is None else sample.heads_kv
        heads = tuple(head for share in self.shares for head in share.heads_kv)
        return None if len(heads) == self.inputs.k.shape[1] else heads


class InputCache:
    """Draws inputs and computes references, and keeps the latest. `with_backward` has lengths that need gradients."""

    def __init__(self, world: World, with_backward: Container[int]) -> None:
        self._world, self._with_backward = world, with_backward
        self._drawn: tuple[Any, Inputs] | None = None
        self._shared: tuple[Any, SharedInputs] | None = None

    def of(self, case: Case, problem: Problem) -> SharedInputs:
        """The inputs and the reference of a case, with its problem."""
        if not self.has(case):
            self.drop()
            self._shared = _shape(case), self._made(case, problem)
        assert self._shared is not None, "it was made"
        return self._shared[1]

    def has(self, case: Case) -> bool:
        """Whether the inputs and the reference of a case are there."""
        return self._shared is not None and self._shared[0] == _shape(case)

    def drop(self) -> None:
        """Frees the memory of a reference for the next one."""
        self._shared = None

    def _made(self, case: Case, problem: Problem) -> SharedInputs:
        inputs = self._draw(case, problem)
        random = Random(repr(self._world.everyone(SystemRandom().getrandbits(63))))
        dealt = shares(problem, self._world.size, random)
        share = dealt[self._world.rank]
        mine, expected = share.inputs(inputs), None
        if share.heads_kv:
            widest = replace(
                problem, direction=Direction.BACKWARD if case.seqlen in self._with_backward else Direction.FORWARD
            )
            expected = reference(share.problem(widest), mine)
        return SharedInputs(inputs, dealt, mine, expected)

    def _draw(self, case: Case, problem: Problem) -> Inputs:
        """Tensors that all masks of one length, seed and shape share: drawing many takes longer than attention."""
        about = (case.seqlen, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.head_dim_v, case.dtype)
        if self._drawn is None or self._drawn[0] != about:
            self._drawn = None
            self._drawn = about, draw_inputs(problem, case.seed)
        return self._drawn[1]


def _shape(case: Case) -> tuple[Any, ...]:
    shape = case.heads_q, case.heads_kv, case.head_dim, case.head_dim_v, case.dtype
    return case.mask.key, case.seed, *shape, case.softcap, case.sinks
