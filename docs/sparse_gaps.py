"""What of the suites on block-sparse masks has no record yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from measured_page import table
from sparse_tables import block_words

from longca import registry
from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import mask_name, tokens
from longca_bench.reports.run_source import Run
from longca_bench.suites.cases import Case, expand
from longca_bench.suites.suite import load_suite

SUITES = ("kept", "sparse")


def gaps(runs: Sequence[Run]) -> str:
    """Lengths, heads and directions of each suite, with the masks that not every kernel that ran has a record of."""
    records = [record for run in runs for record in run.records if record.status != "skipped"]
    there = {_key(record, dict(record.factors)) for record in records}
    ran = {record.kernel for record in records if record.status == "ok"}
    body = [line for suite in SUITES for line in _lines(suite, there, ran)]
    if not body:
        return "Nothing: every case of the suites has a record."
    return table(["suite", "tokens", "heads and directions", "masks"], body, left=(0, 1, 2, 3))


def _key(about: Case | Record, factors: dict[str, Any]) -> tuple[object, ...]:
    names = ("kernel", "seqlen", "heads_q", "heads_kv", "head_dim", "dtype", "direction", "seed")
    return (*(getattr(about, name) for name in names), mask_name(about.pattern, factors))


def _lines(suite: str, there: set[tuple[object, ...]], ran: set[str]) -> list[list[str]]:
    cases = [case for case in expand(load_suite(suite), registry().kernels) if case.kernel in ran]
    found: dict[tuple[int, str], dict[str, list[Case]]] = {}
    for case in cases:
        shape = case.seqlen, f"{case.heads_q}:{case.heads_kv} {case.direction}"
        found.setdefault(shape, {}).setdefault(mask_name(case.pattern, dict(case.factors)), []).append(case)
    merged: dict[tuple[int, str], list[str]] = {}
    for (seqlen, words), masks in found.items():
        lacking = [some[0] for some in masks.values() if not all(_key(c, dict(c.factors)) in there for c in some)]
        if lacking:
            which = "all" if len(lacking) == len(masks) else _named(lacking)
            merged.setdefault((seqlen, which), []).append(words)
    return [[f"`{suite}`", tokens(seqlen), ", ".join(words), which] for (seqlen, which), words in merged.items()]


def _named(cases: Iterable[Case]) -> str:
    """Masks by their blocks, each with the shares kept."""
    by_block: dict[str, list[str]] = {}
    for case in cases:
        factors = dict(case.factors)
        name = block_words(factors.get("block")) if "kept" in factors else f"`{case.pattern}`"
        by_block.setdefault(name, []).extend([f"{factors['kept']:.0%}"] if "kept" in factors else [])
    return "; ".join(f"{name}: {', '.join(shares)} kept" if shares else name for name, shares in by_block.items())
