"""Shared inputs: the tensors and the reference that the cases of one mask and shape share, on one rank."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import Any

from longca.manifests import Direction, Problem
from longca_bench.measuring.shares import Share, shares
from longca_bench.measuring.world import World
from longca_bench.suites.case import Case
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_bench.verification.reference import Reference, reference

__all__ = ["InputCache", "SharedInputs"]


@dataclass(frozen=True)
class SharedInputs:
    """The inputs and the reference of one mask and shape on this rank.

    Attributes:
        inputs: The tensors of all tokens and heads.
        shares: The heads that each rank verifies. One device verifies all of them, or those of the reference's sample.
        mine: The tensors of this rank's heads.
        expected: The reference of this rank's heads, or None if it has none.
        kept: Results that the cases of one kernel and direction share, by their names.
    """

    inputs: Inputs
    shares: list[Share]
    mine: Inputs
    expected: Reference | None
    kept: dict[tuple[str, str], Any] = field(default_factory=dict)

    @property
    def verified_kv_heads(self) -> tuple[int, ...] | None:
        """The KV heads that ranks verify together, or None if they verify all heads."""
        if len(self.shares) == 1:
            sample = self.expected.sample if self.expected is not None else None
            return None if sample is None else sample.heads_kv
        heads = tuple(head for share in self.shares for head in range(*share.heads_kv))
        return None if len(heads) == self.inputs.k.shape[1] else heads


class InputCache:
    """Draws inputs and computes references, and keeps the latest ones.

    Args:
        world: The ranks. All of them ask for the same cases in the same order.
        with_backward: Lengths whose references need gradients.
    """

    def __init__(self, world: World, with_backward: Container[int]) -> None:
        self._world, self._with_backward = world, with_backward
        self._drawn: tuple[Any, Inputs] | None = None
        self._shared: tuple[Any, SharedInputs] | None = None

    def of(self, case: Case, problem: Problem) -> SharedInputs:
        """The inputs and the reference of a case.

        Args:
            case: The case.
            problem: Its problem.
        """
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
        if not share.is_empty:
            widest = replace(
                problem, direction=Direction.BACKWARD if case.seqlen in self._with_backward else Direction.FORWARD
            )
            expected = reference(share.problem(widest), mine)
        return SharedInputs(inputs, dealt, mine, expected)

    def _draw(self, case: Case, problem: Problem) -> Inputs:
        """Tensors that all masks of one length, seed and shape share: drawing many takes longer than attention."""
        about = (case.seqlen, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype)
        if self._drawn is None or self._drawn[0] != about:
            self._drawn = None
            self._drawn = about, draw_inputs(problem, case.seed)
        return self._drawn[1]


def _shape(case: Case) -> tuple[Any, ...]:
    return case.mask.key, case.seed, case.heads_q, case.heads_kv, case.head_dim, case.dtype
