"""Failures in a clause: properties that a kernel's wrong problems share and its right ones lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from longca.manifests import Problem
from longca.masks import Form
from longca_bench.conformance.masks import has_empty_rows
from longca_bench.verification.findings import Verification

__all__ = ["Case", "failure_summary"]

_TILE = 128
#: Properties that a summary names.
_MOST = 2


class Case(NamedTuple):
    """A problem of a check, its label, and the findings about it."""

    label: str
    problem: Problem
    found: Verification

    @property
    def lengths(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.problem.concrete_mask.seqlen_q, self.problem.concrete_mask.seqlen_k


#: Properties of a case, the plainer ones first.
_PROPERTIES: dict[str, Callable[[Case], bool]] = {
    "queries are no multiple of 128": lambda case: case.lengths[0] % 128 > 0,
    "keys are no multiple of 128": lambda case: case.lengths[1] % 128 > 0,
    "queries are no multiple of 64": lambda case: case.lengths[0] % 64 > 0,
    "keys are no multiple of 64": lambda case: case.lengths[1] % 64 > 0,
    "there are more than 128 keys": lambda case: case.lengths[1] > _TILE,
    "there are more than 128 queries": lambda case: case.lengths[0] > _TILE,
    "there are more queries than keys": lambda case: case.lengths[0] > case.lengths[1],
    "there are more keys than queries": lambda case: case.lengths[1] > case.lengths[0],
    "some queries see no key": lambda case: has_empty_rows(case.problem.concrete_mask),
    "query heads share KV heads": lambda case: case.problem.heads_q > case.problem.num_heads_kv,
    "each query head has a KV head": lambda case: case.problem.heads_q == case.problem.num_heads_kv,
    "heads have masks of their own": lambda case: case.problem.concrete_mask.heads > 1,
    "there are several documents": lambda case: len(case.problem.concrete_mask.factors.get("documents", ())) > 1,
    "the mask has a window": lambda case: "window" in case.problem.concrete_mask.factors,
    "the mask is no single band": lambda case: not case.problem.concrete_mask.admits(Form.WINDOW),
    "scores are large and some keys are outliers": lambda case: case.label.endswith("outliers"),
}


def failure_summary(cases: Sequence[Case]) -> str:
    """A clause about the wrong cases among some: how many, only where, of which tensors, at which tokens.

    A property is named if all wrong cases have it and fewer right ones do than any other property. Then a second one is
    looked for among these. It is empty if no case is wrong.
    """
    failed = [case for case in cases if not case.found.passed]
    if not failed:
        return ""
    others = [case for case in cases if case.found.passed]
    shared = {words: has for words, has in _PROPERTIES.items() if all(map(has, failed))}
    chosen: list[str] = []
    while others and shared and len(chosen) < _MOST:
        words = min(shared, key=lambda words: sum(map(shared[words], others)))
        left = [case for case in others if shared[words](case)]
        if len(left) == len(others):
            break
        chosen, others = [*chosen, words], left
    said = f"wrong in {len(failed)} of {len(cases)} problems"
    if chosen:
        said += f", only where {' and '.join(chosen)}"
    tensors = dict.fromkeys(finding.tensor.partition(" ")[0] for case in failed for finding in case.found.failures)
    return "; ".join([said, " and ".join(tensors), *_last_tile(failed)])


def _last_tile(failed: Sequence[Case]) -> list[str]:
    """A clause if the worst rows of all wrong cases are in the last tile, and some case has several tiles."""
    found = []  # whether rows are keys, their tile, and the last one
    for case in failed:
        for each in case.found.failures:
            is_key = each.tensor.startswith(("dk", "dv"))
            found.append((is_key, each.token // _TILE, (case.lengths[is_key] - 1) // _TILE))
    if not any(last for _, _, last in found) or any(tile != last for _, tile, last in found):
        return []
    axes = [axis for is_key, axis in ((False, "queries"), (True, "keys")) if any(is_key == row[0] for row in found)]
    return [f"{' and '.join(axes)} of the last tile of {_TILE}"]
