"""New work: calls on inputs that a kernel has never met. They must be right, and as fast as the samples.

Between timed calls inputs change in ways whose effect is known. A kernel could learn these ways: it recognises each
head, and repeats an earlier result in another order and with other factors. New inputs (`Signs`) have no such result,
and nothing that was kept for a head helps. A backward gets the kernel's own out and lse of the new inputs. The results
are compared at some tokens of all heads. The tokens are drawn after the calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random, SystemRandom

import torch
from torch import Tensor

from longca.manifests import Direction, Problem
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.remote_kernel import Step
from longca_bench.measuring.results import NAMES
from longca_bench.verification.findings import INCOMPLETE, Finding, check_values, is_complete, wrong
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.new_inputs import OF_KEYS, TOKENS, Signs, reference_at
from longca_bench.verification.rows import drawn_tokens, rows_at

__all__ = ["COMPARED", "NewWork"]

#: The most calls that are compared.
COMPARED = 3
_QKV = ("q", "k", "v")


class NewWork:
    """Calls on new inputs.

    Args:
        problem: The problem.
        given: Its inputs, in memory that the kernel does not reach.
        like: The data type in which references are computed.
        first: The first call. Its arguments are the given inputs, in memory that the kernel reaches.
        arena: The memory that the kernel reaches.
        count: The number of calls.
        rough_lse: Whether the offer calls its log-sum-exp rough.

    Attributes:
        steps: The calls. A backward's out and lse come from a forward, which `forwards` describes.
    """

    def __init__(
        self,
        problem: Problem,
        given: Inputs,
        like: torch.dtype,
        first: Step,
        arena: Arena,
        count: int,
        *,
        rough_lse: bool,
    ) -> None:
        self._problem, self._given, self._like, self._rough_lse = problem, given, like, rough_lse
        self._is_forward = problem.direction == "forward"
        own = _QKV if self._is_forward else (*_QKV, "dout", *NAMES[Direction.FORWARD])
        self.steps = [first]
        for _ in range(count - 1):
            tensors = {**first.tensors, **{name: arena.like(first.tensors[name]) for name in own}}
            self.steps.append(Step(tensors, {name: arena.like(x) for name, x in first.landing.items()}))

    @property
    def forwards(self) -> list[Step]:
        """The forward of each call of a backward. Its results are arguments of the call."""
        if self._is_forward:
            return []
        names = NAMES[Direction.FORWARD]
        return [
            Step(
                {name: step.tensors[name] for name in _QKV},
                {name: step.tensors[name].fill_(torch.nan) for name in names},
            )
            for step in self.steps
        ]

    def draw(self) -> None:
        """Draws q, k and v of each call."""
        for name in _QKV:
            self._draw(name)

    def draw_dout(self) -> None:
        """Draws dout of each call of a backward, after `forwards` have run.

        A forward that knew it could compute the gradients too.
        """
        self._draw("dout")

    def _draw(self, name: str) -> None:
        source = getattr(self._given, name)
        for step in self.steps:
            Signs(source.shape, SystemRandom(), source.device).write(source, step.tensors[name])

    def empty(self) -> float:
        """Fills the places of the results with NaN.

        Returns:
            Seconds that it took.
        """
        start = time.perf_counter()
        for step in self.steps:
            for place in step.landing.values():
                place.fill_(torch.nan)
        return time.perf_counter() - start

    def failures(self, *, without_lse: bool, random: Random = SystemRandom()) -> list[Finding]:
        """The failures of the results. All of them must be complete. Some calls are compared at some tokens.

        Args:
            without_lse: Whether the kernel gives no log-sum-exp.
            random: Draws the calls and the tokens. The system's random numbers cannot be predicted.
        """
        wanted = [
            {name: x for name, x in self._results(step).items() if name != "lse" or not without_lse}
            for step in self.steps
        ]
        found = [
            wrong(name, INCOMPLETE)
            for results in wanted
            for name, result in results.items()
            if not is_complete(name, result)
        ]
        calls = random.sample(range(len(wanted)), min(COMPARED, len(wanted)))
        found += self._compared([self.steps[call].tensors for call in calls], [wanted[call] for call in calls], random)
        return [finding.named(f"{finding.tensor} of new inputs") for finding in found]

    def _results(self, step: Step) -> dict[str, Tensor]:
        """The results of a call, and of its forward."""
        forward = {} if self._is_forward else {name: step.tensors[name] for name in NAMES[Direction.FORWARD]}
        return {**step.landing, **forward}

    def _compared(
        self, tensors: Sequence[Mapping[str, Tensor]], results: Sequence[Mapping[str, Tensor]], random: Random
    ) -> list[Finding]:
        """The failures of calls at some queries and some keys.

        The heads of the calls are beside each other as those of one problem, because a reference of few tokens takes
        most of its time once for all heads.
        """
        given = [{"dout": self._given.dout, **each} for each in tensors]
        inputs = Inputs(*(_beside(name, given) for name in (*_QKV, "dout")))
        forward = {name: _beside(name, tensors) for name in NAMES[Direction.FORWARD] if name in tensors[0]}
        own = self._problem.heads_q, self._problem.num_heads_kv
        heads_q, heads_kv = (tuple(range(heads)) * len(tensors) for heads in own)
        problem = self._problem if len(tensors) == 1 else self._problem.narrowed(heads_q, heads_kv)
        found: list[Finding] = []
        for of_keys, heads in zip((False, True), own, strict=True):
            there = {name: _beside(name, results) for name in results[0] if (name in OF_KEYS) is of_keys}
            if there:
                source = inputs.k if of_keys else inputs.q
                tokens = drawn_tokens(len(source), random, TOKENS).to(source.device)
                right = reference_at(problem, inputs, tokens, forward, of_keys=of_keys, like=self._like)
                rows = {name: rows_at(name, result, tokens) for name, result in there.items()}
                compared = check_values(rows, right, rough_lse=self._rough_lse)
                found += [
                    replace(each, token=int(tokens[each.token]), head=each.head % heads) for each in compared.failures
                ]
        return found


def _beside(name: str, calls: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """The heads of a tensor of each call, one call after another."""
    first, *others = (tensors[name] for tensors in calls)
    return torch.cat([first, *others], 0 if name == "lse" else 1) if others else first
