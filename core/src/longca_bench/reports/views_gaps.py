"""The view of gaps: cases of suites for which runs have no record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from longca_bench.reports.table import Cell, Head, Table
from longca_bench.reports.words import mask_name, tokens

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows
    from longca_bench.suites.case import Case

__all__ = ["gaps", "strategy_gaps"]

_KEY = ("kernel", "seqlen", "heads_q", "heads_kv", "head_dim", "dtype", "direction", "seed")
_HEADS = ("suite", "tokens", "heads and directions", "kernels", "masks")


def gaps(rows: Rows, suites: Iterable[str] | str = ()) -> list[Table]:
    """The masks of suites that lack a record of a kernel, by length, heads and direction.

    Args:
        rows: The records. Kernels without any measured case are left out.
        suites: Names of suites; empty for the suites of the runs.
    """
    names = [suites] if isinstance(suites, str) else list(suites) or list(dict.fromkeys(rows["suite"]))
    tried = rows.where(lambda found: found["status"] != "skipped").frame((*_KEY, "mask"))
    there = set(tried.itertuples(index=False, name=None))
    ran = set(rows.where(status="ok")["kernel"])
    lines = [line for name in names for line in _lines(name, there, ran)]
    heads = tuple(Head(head, left=True, code=head == "suite", wrap=head == "masks") for head in _HEADS)
    return [Table(heads, tuple(tuple(map(Cell, line)) for line in lines))] if lines else []


def _lines(name: str, there: set[Any], ran: set[str]) -> list[list[str]]:
    from longca import registry
    from longca_bench.suites.cases import expand
    from longca_bench.suites.suite import load_suite

    found: dict[tuple[int, str], dict[str, list[Case]]] = {}
    for case in (case for case in expand(load_suite(name), registry(guarded=True).kernels) if case.kernel in ran):
        shape = case.seqlen, f"{case.heads_q}:{case.heads_kv} {case.direction}"
        found.setdefault(shape, {}).setdefault(mask_name(case.pattern, dict(case.factors)), []).append(case)
    merged: dict[tuple[int, str, str], list[str]] = {}
    for (seqlen, words), masks in found.items():
        by_kernels: dict[str, list[str]] = {}
        for mask, cases in masks.items():
            lacking = dict.fromkeys(case.kernel for case in cases if _key(case, mask) not in there)
            if lacking:
                by_kernels.setdefault(", ".join(lacking), []).append(mask)
        for kernels, lacked in by_kernels.items():
            which = "all" if len(lacked) == len(masks) else ", ".join(lacked)
            merged.setdefault((seqlen, kernels, which), []).append(words)
    return [
        [name, tokens(seqlen), ", ".join(words), kernels, which]
        for (seqlen, kernels, which), words in sorted(merged.items(), key=lambda each: each[0][0])
    ]


def _key(case: Case, mask: str) -> tuple[Any, ...]:
    return (*(getattr(case, name) for name in _KEY), mask)


_WAY = ("strategy", "placement", "mesh")
_SHARED = ("ranks", "kernel", "tokens", "direction", "recorded", "lacking some of")


def strategy_gaps(rows: Rows, suite: str = "distributed") -> list[Table]:
    """How many of a suite's cases on several ranks have a record, by ranks, kernel, length and direction.

    Args:
        rows: The records. Numbers of ranks without any record are left out.
        suite: Name of the suite.
    """
    from longca import registry
    from longca_bench.suites.cases import expand
    from longca_bench.suites.suite import load_suite

    tried = rows.where(lambda found: found["strategy"].notna() & (found["status"] != "skipped"))
    there = set(tried.frame((*_KEY, "pattern", *_WAY)).itertuples(index=False, name=None))
    known, asked = registry(guarded=True), load_suite(suite)
    shapes: dict[tuple[int, str, int, str], list[Case]] = {}
    for ranks in sorted(set(map(int, tried["world_size"]))):
        for case in expand(asked, known.kernels, strategies=known.strategies, ranks=ranks):
            shapes.setdefault((ranks, case.kernel, case.seqlen, str(case.direction)), []).append(case)
    lines = []
    for (ranks, kernel, seqlen, direction), cases in shapes.items():
        lacking = [case for case in cases if _shared_key(case) not in there]
        if lacking:
            masks = list(dict.fromkeys(case.pattern for case in lacking))
            which = "all masks" if len(masks) == len({case.pattern for case in cases}) else ", ".join(masks)
            recorded = f"{len(cases) - len(lacking)} of {len(cases)}"
            lines.append([str(ranks), kernel, tokens(seqlen), direction, recorded, which])
    heads = tuple(Head(head, left=head != "recorded", code=head == "kernel") for head in _SHARED)
    return [Table(heads, tuple(tuple(map(Cell, line)) for line in lines))] if lines else []


def _shared_key(case: Case) -> tuple[Any, ...]:
    assert case.parallel is not None
    return (*_key(case, case.pattern), case.parallel.strategy, case.parallel.placement, case.parallel.mesh_text)
