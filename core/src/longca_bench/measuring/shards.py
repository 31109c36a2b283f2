"""Shards: one rank's tokens of a case. It has their inputs, which change between calls, and checks their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from longca.manifests import Direction, Problem
from longca_bench.measuring.arena import Arena
from longca_bench.measuring.remote_kernel import empty_results
from longca_bench.measuring.results import NAMES
from longca_bench.measuring.shares import SharedInputs, by_heads, held_tokens, numbered
from longca_bench.measuring.world import World
from longca_bench.suites.tasks import Sharing
from longca_bench.verification.change import Change
from longca_bench.verification.findings import INCOMPLETE, Finding, check_lse_counts, check_values, is_complete, wrong
from longca_bench.verification.head_sample import HeadSample
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.reference import Reference
from longca_bench.verification.rows import Checksums, at_tokens, drawn_tokens, rows_at

__all__ = ["Results", "Shard"]

#: A rank's tensors by their names: out and lse, or dq, dk and dv.
Results = dict[str, Tensor]
_INPUTS = ("q", "k", "v", "dout")


class Shard:
    """This rank's tokens of a problem of all ranks. All ranks call its methods that compare results.

    `inputs` are in memory that the worker reaches, with the values that were written last. `change` is the latest
    change. `checksums` has those of verified results, if only some heads are verified.
    """

    def __init__(
        self, problem: Problem, sharing: Sharing, shared: SharedInputs, world: World, arena: Arena, rough_lse: bool
    ) -> None:
        layout, place = sharing.layout, sharing.places[world.rank]
        self._problem, self._shared, self._world, self._arena = problem, shared, world, arena
        self._rough_lse = rough_lse
        self._given = {name: layout.shard(getattr(shared.inputs, name), place) for name in _INPUTS}
        self.inputs = Inputs(*map(arena.like, self._given.values()))
        self.change = Change.none(problem)
        self.checksums = Checksums(self.inputs.q.dtype, rough_lse=rough_lse)
        self._held = held_tokens(layout, sharing.places)
        self._owner, self._row = (torch.empty(layout.num_tokens, dtype=torch.int64) for _ in range(2))
        for rank, tokens in enumerate(self._held):
            self._owner[tokens], self._row[tokens] = rank, torch.arange(len(tokens))

    def draw(self, random: Random) -> None:
        """Draws the next change, the same on all ranks. Inputs stay as they are until they are written."""
        self.change = Change.draw(self._problem, self.change, random)

    def write(self, *names: str) -> None:
        """Writes some inputs as the latest change makes them."""
        for name in names:
            self.change.write(name, self._given[name], getattr(self.inputs, name))

    def landing(self, direction: Direction) -> Results:
        """New shared tensors for this rank's results, full of NaN."""
        x = self.inputs
        return empty_results(self._arena, x.q, x.k, x.v, NAMES[direction])

    def undone(self, results: Mapping[str, Tensor]) -> Results:
        """Results for the inputs as they were drawn."""
        return {name: self.change.undo(name, result) for name, result in results.items()}

    def changed_inputs(self) -> list[Finding]:
        """A finding for each input that is not as it was written. The input gets its values back."""
        now = self.undone({name: getattr(self.inputs, name) for name in _INPUTS})
        changed = [name for name, given in self._given.items() if not torch.equal(now[name], given)]
        self.write(*changed)
        return self.here(wrong(name, "the strategy changed this input") for name in changed)

    def incomplete(self, results: Mapping[str, Tensor]) -> list[Finding]:
        """A finding for each result of this rank that is not complete."""
        return self.here(wrong(name, INCOMPLETE) for name, x in results.items() if not is_complete(name, x))

    def check(self, results: Mapping[str, Tensor]) -> list[Finding]:
        """The findings of this rank's heads over all tokens. The first results give the checksums."""
        found = self.incomplete(results)
        whole = {}
        for name, mine in self.undone(results).items():
            if self._shared.verified_kv_heads is not None and not self.checksums.is_complete:
                self.checksums.keep(name, mine)
            whole[name] = by_heads(name, mine, self._held, self._shared.shares, self._world)
        if self._shared.expected is None:
            return found
        return found + self._named(check_values(whole, self._shared.expected, rough_lse=self._rough_lse).findings)

    def check_rows(self, results: Mapping[str, Tensor], random: Random) -> list[Finding]:
        """The failures of this rank's heads at some tokens, the same on all ranks, and of this rank's checksums."""
        tokens = drawn_tokens(len(self._owner), random)
        parts, expected = self._at(tokens, results, self._shared.shares), self._shared.expected
        found = list[Finding]()
        if expected is not None:
            for name, part in parts.items():
                found += self._failures({name: part}, at_tokens(expected, name, tokens.to(part.device)), tokens)
        found = self._named(found)
        if self._shared.verified_kv_heads is not None:
            found += self.here(self.checksums.check(dict(results), self.change))
        return found

    def _at(self, tokens: Tensor, results: Mapping[str, Tensor], dealt: Sequence[HeadSample]) -> Results:
        """Some tokens of this rank's heads, from the results of all ranks, for the inputs as they were drawn."""
        held = [tokens[self._owner[tokens] == rank] for rank in range(self._world.size)]
        rows = self._row[held[self._world.rank]]
        mine = self.undone({name: rows_at(name, x, rows.to(x.device)) for name, x in results.items()})
        return {name: by_heads(name, x, held, dealt, self._world) for name, x in mine.items()}

    def _failures(self, parts: Results, right: Reference, tokens: Tensor) -> list[Finding]:
        """The failures of results at some tokens, with the numbers of the tokens."""
        failures = check_values(parts, right, rough_lse=self._rough_lse).failures
        return [replace(each, token=int(tokens[each.token])) for each in failures]

    def check_counts(self, lse: Tensor) -> list[Finding]:
        """The findings of the counts of visible keys, for this rank's lse [Hq, Tl] of q = 0."""
        share = self._shared.shares[self._world.rank]
        whole = by_heads("lse", self.change.undo("lse", lse), self._held, self._shared.shares, self._world)
        return [] if not share.heads_kv else self._named(check_lse_counts(whole, share.problem(self._problem)).findings)

    def here(self, found: Iterable[Finding]) -> list[Finding]:
        """Findings, with this rank's number."""
        return [_on(each, self._world.rank) for each in found]

    def _named(self, found: Iterable[Finding]) -> list[Finding]:
        """Findings in this rank's share of the verified heads. A failure names the rank that holds its token."""
        share = self._shared.shares[self._world.rank]
        named = [numbered(each, share).placed(self.change.place) for each in found]
        return [each if each.passed else _on(each, int(self._owner[each.token])) for each in named]


def _on(finding: Finding, rank: int) -> Finding:
    return finding.named(f"{finding.tensor} on rank {rank}")
