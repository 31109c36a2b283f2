"""Subject: a strategy with a kernel on one case, made ready on one rank: what is verified and timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longca.manifests import Layout, Problem
from longca.parallel.strategy import Strategy, StrategyPlan
from longca_bench.ranks.probe import Probe
from longca_bench.ranks.shares import Share, by_heads
from longca_bench.ranks.world import World
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.verify import Finding, Verification, check_lse_counts, check_values

__all__ = ["Results", "Subject", "worst"]

#: This rank's tensors by their names: out and lse, or dq, dk and dv.
Results = dict[str, Tensor]
_FORWARD, _BACKWARD = ("out", "lse"), ("dq", "dk", "dv")


@dataclass(frozen=True)
class Subject:
    """What is verified and timed.

    Attributes:
        strategy: The strategy.
        plan: Its plan, made with the probe.
        probe: The kernel, as the strategy has it.
        problem: What is asked of all ranks together.
        layout: Who holds what.
        places: Each rank's place in the layout, by the coordinates it has in the mesh.
        inputs: This rank's tokens.
        shares: The heads that each rank verifies.
        expected: The reference of this rank's share; None where that is empty.
        rough_lse: What the offers that the steps use say of their log-sum-exps.
        world: The ranks.
    """

    strategy: Strategy
    plan: StrategyPlan
    probe: Probe
    problem: Problem
    layout: Layout
    places: Sequence[int]
    inputs: Inputs
    shares: Sequence[Share]
    expected: Reference | None
    rough_lse: bool
    world: World

    @property
    def is_forward(self) -> bool:
        """Whether it is the forward that is measured."""
        return self.problem.direction == "forward"

    def forward(self) -> tuple[Results, list[Tensor] | None]:
        """The forward, and what it keeps for the backward, where one is measured."""
        kept: list[Tensor] | None = None if self.is_forward else []
        x = self.inputs
        out, lse = self.strategy.forward(x.q, x.k, x.v, self.plan, kept=kept)
        return {"out": out, "lse": lse}, kept

    def call(self, forward: Results, kept: list[Tensor] | None) -> Results:
        """The work that is timed: the direction alone.

        Args:
            forward: What the forward gave.
            kept: What it kept.
        """
        x = self.inputs
        if self.is_forward:
            results, names = self.strategy.forward(x.q, x.k, x.v, self.plan), _FORWARD
        else:
            saved = x.q, x.k, x.v, forward["out"], forward["lse"]
            grads = self.strategy.backward(x.dout, *saved, self.plan, kept=kept)
            return dict(zip(_BACKWARD, grads, strict=True))
        return dict(zip(names, results, strict=True))

    def check(self, results: Results) -> Verification:
        """Verifies results of all ranks: each rank its share of the heads, and everyone learns what all found."""
        findings = [*self._misfits(results)]
        if any(self.world.everyone(bool(findings))):
            return self._all(findings)
        dealt = list(self.shares)
        whole = {name: by_heads(name, x, self.layout, self.places, dealt, self.world) for name, x in results.items()}
        if self.expected is not None:
            share = dealt[self.world.rank]
            found = check_values(whole, self.expected, rough_lse=self.rough_lse)
            findings = [share.named(finding) for finding in found.findings]
        return self._all(findings)

    def check_counts(self) -> Verification:
        """With q = 0, exp(lse) is the number of keys each query sees."""
        x, dealt = self.inputs, list(self.shares)
        _, lse = self.strategy.forward(torch.zeros_like(x.q), x.k, x.v, self.plan)
        whole = by_heads("lse", lse, self.layout, self.places, dealt, self.world)
        share = dealt[self.world.rank]
        found = () if share.is_empty else check_lse_counts(whole, share.problem(self.problem)).findings
        return self._all([share.named(each) for each in found])

    def check_inputs(self, given: Inputs) -> Verification:
        """Whether this rank's inputs are still what they are in the inputs of all."""
        rank, names = self.world.rank, ("q", "k", "v", "dout")
        changed = [
            name
            for name in names
            if not torch.equal(getattr(self.inputs, name), self.layout.shard(getattr(given, name), self.places[rank]))
        ]
        return self._all([_wrong(name, f"the strategy changed this input on rank {rank}") for name in changed])

    def negated(self) -> Subject:
        """The same with v negated, in the same memory: out, dq and dk change sign, dv and lse do not."""
        self.inputs.v.neg_()
        if self.expected is None:
            return self
        changed = {"out", "dq", "dk"}
        rows = {n: replace(row, value=-row.value) if n in changed else row for n, row in self.expected.rows.items()}
        return replace(self, expected=replace(self.expected, rows=rows))

    def _misfits(self, results: Results) -> list[Finding]:
        """A finding for each of this rank's results that has not the shape and dtype of the contract."""
        x = self.inputs
        like = {"out": x.q, "dq": x.q, "dk": x.k, "dv": x.v}
        findings = []
        for name, result in results.items():
            wanted = (x.q.shape[1], x.q.shape[0]) if name == "lse" else like[name].shape
            if result.shape != wanted or (name != "lse" and result.dtype != x.q.dtype):
                note = f"{tuple(result.shape)} {result.dtype} came back; {tuple(wanted)} is the contract"
                findings.append(_wrong(name, f"{note}, on rank {self.world.rank}"))
        return findings

    def _all(self, findings: list[Finding]) -> Verification:
        """Of each tensor the worst that any rank found."""
        return Verification(worst(self.world.everyone(findings)))


def worst(found: Iterable[Iterable[Finding]]) -> tuple[Finding, ...]:
    """Of what several ranks found, the worst of each tensor."""
    kept: dict[str, Finding] = {}
    for finding in (finding for findings in found for finding in findings):
        last = kept.get(finding.tensor)
        if last is None or _badness(finding) > _badness(last):
            kept[finding.tensor] = finding
    return tuple(kept.values())


def _badness(finding: Finding) -> tuple[bool, float]:
    return not finding.passed, finding.closeness


def _wrong(tensor: str, note: str) -> Finding:
    return Finding(tensor, False, torch.inf, torch.nan, 0.0, 0, 0, note)
