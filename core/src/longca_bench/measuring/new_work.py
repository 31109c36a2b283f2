"""New work: calls on inputs that a kernel has never met. They must be right, and as fast as the samples.

Between timed calls inputs change in ways whose effect is known. A kernel could learn these ways: it recognises each
head, and repeats an earlier result in another order and with other factors. New inputs (`Signs`) have no such result,
and nothing that was kept for a head helps. A backward gets the kernel's own out and lse of the new inputs. The results
are compared at some tokens, which are drawn after the calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from random import Random, SystemRandom

import torch
from torch import Tensor

from longca.manifests import Direction, Problem
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.remote_kernel import Step
from longca_bench.measuring.results import NAMES
from longca_bench.verification.findings import Finding, check_values, wrong
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.new_inputs import TOKENS, Signs, reference_at
from longca_bench.verification.reference import Reference
from longca_bench.verification.rows import drawn_tokens, rows_at

__all__ = ["COMPARED", "NewWork"]

#: The most calls, or steps of a stream, that are compared.
COMPARED = 3
_QKV, _OF_KEYS = ("q", "k", "v"), ("dk", "dv")


class NewWork:
    """Calls on new inputs.

    Args:
        problem: The problem.
        given: Its inputs, in memory that the kernel does not reach.
        expected: The reference of these inputs.
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
        expected: Reference,
        first: Step,
        arena: Arena,
        count: int,
        *,
        rough_lse: bool,
    ) -> None:
        self._problem, self._given, self._expected, self._rough_lse = problem, given, expected, rough_lse
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
            {name: x for name, x in step.landing.items() if name != "lse" or not without_lse} for step in self.steps
        ]
        found = [
            wrong(name, "not every element is finite, or was written")
            for results in wanted
            for name, result in results.items()
            if not (~result.isnan() if name == "lse" else result.isfinite()).all()
        ]
        for call in random.sample(range(len(wanted)), min(COMPARED, len(wanted))):
            tensors, results = self.steps[call].tensors, wanted[call]
            if not self._is_forward:
                results |= {name: tensors[name] for name in ("out", "lse")[: 1 if without_lse else 2]}
            found += self._compared(tensors, results, random)
        return [finding.named(f"{finding.tensor} of new inputs") for finding in found]

    def _compared(self, tensors: Mapping[str, Tensor], results: Mapping[str, Tensor], random: Random) -> list[Finding]:
        """The failures of a call at some queries and some keys."""
        new = _QKV if self._is_forward else (*_QKV, "dout")
        inputs = replace(self._given, **{name: tensors[name] for name in new})
        if self._expected.sample is not None:
            inputs = self._expected.sample.inputs(inputs)
        sample, like = self._expected.sample, self._expected.rows["out"].value.dtype
        problem = self._problem if sample is None else sample.problem(self._problem)
        forward = {name: self._heads(name, x) for name, x in tensors.items() if name in NAMES[Direction.FORWARD]}
        found: list[Finding] = []
        for of_keys in (False, True):
            there = {name: self._heads(name, x) for name, x in results.items() if (name in _OF_KEYS) is of_keys}
            if there:
                source = inputs.k if of_keys else inputs.q
                tokens = drawn_tokens(len(source), random, TOKENS).to(source.device)
                right = reference_at(problem, inputs, tokens, forward, of_keys=of_keys, like=like)
                rows = {name: rows_at(name, result, tokens) for name, result in there.items()}
                compared = check_values(rows, right, rough_lse=self._rough_lse)
                found += [self._placed(finding, tokens) for finding in compared.failures]
        return found

    def _heads(self, name: str, tensor: Tensor) -> Tensor:
        """The heads of a tensor that have a reference."""
        return tensor if self._expected.sample is None else self._expected.sample.of(name, tensor)

    def _placed(self, finding: Finding, tokens: Tensor) -> Finding:
        """A finding at drawn tokens, with its place among all tokens and heads."""
        sample = self._expected.sample
        head = finding.head if sample is None else sample.indices(finding.tensor)[finding.head]
        return replace(finding, token=int(tokens[finding.token]), head=head)
