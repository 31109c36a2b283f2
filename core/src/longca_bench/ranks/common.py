"""Common: the tensors and the reference that the cases of one mask and shape share, on one rank."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Any

from longca.manifests import Problem
from longca_bench.ranks.alone import Alone
from longca_bench.ranks.shares import Share, shares
from longca_bench.ranks.world import World
from longca_bench.suites.cases import Case
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import Reference, reference

__all__ = ["Common", "Commons"]


@dataclass(frozen=True)
class Common:
    """What the cases of one mask and shape have in common on this rank.

    Attributes:
        inputs: The tensors of all tokens.
        shares: The heads that each rank verifies.
        mine: This rank's share of the tensors.
        expected: Its reference; None where the share is empty.
        alone: What was found of kernels alone, by name and direction.
    """

    inputs: Inputs
    shares: list[Share]
    mine: Inputs
    expected: Reference | None
    alone: dict[tuple[str, str], Alone]


class Commons:
    """Makes them, and keeps the latest.

    Args:
        world: The ranks.
        with_backward: Lengths whose references need gradients.
    """

    def __init__(self, world: World, with_backward: Container[int]) -> None:
        self._world, self._with_backward = world, with_backward
        self._drawn: tuple[Any, Inputs] | None = None
        self._kept: tuple[Any, Common] | None = None

    def of(self, case: Case, problem: Problem) -> Common:
        """What a case has in common with those around it; all ranks ask for the same."""
        shape = (case.mask.key, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype)
        if self._kept is None or self._kept[0] != shape:
            self._kept = None  # before there is another one, which may need its memory
            inputs = self._draw(case, problem)
            dealt = shares(problem, self._world.size)
            share = dealt[self._world.rank]
            mine, expected = share.inputs(inputs), None
            if not share.is_empty:
                widest = replace(problem, direction="backward" if case.seqlen in self._with_backward else "forward")
                expected = reference(share.problem(widest), mine)
            self._kept = shape, Common(inputs, dealt, mine, expected, {})
        return self._kept[1]

    def _draw(self, case: Case, problem: Problem) -> Inputs:
        """The tensors of all tokens, which every rank draws for itself, and all masks of a length and shape share."""
        about = (case.seqlen, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype)
        if self._drawn is None or self._drawn[0] != about:
            self._drawn = None
            self._drawn = about, draw_inputs(problem, case.seed)
        return self._drawn[1]
