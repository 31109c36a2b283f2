"""What was not measured: refused or failed, with the reason; and what the suite has and no record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from measured_page import table
from parallel_ways import Way

from longca import registry
from longca_bench.measuring.records import Record
from longca_bench.reports.markdown import escaped
from longca_bench.reports.run_cells import counts, mask_name, tokens
from longca_bench.reports.run_source import Run
from longca_bench.suites.cases import Case, expand
from longca_bench.suites.suite import load_suite

SUITE = "distributed"
_LONGEST = 260  # characters of a reason
_FEW = 4  # ways or masks that are named one by one


def not_measured(runs: Sequence[Run], peers: Iterable[dict[str, Any]]) -> str:
    """How many cases each run has by status; every status that is not ok, with its reason; and peers that failed."""
    lines = "\n".join(f"- `{run.folder.name}`: {counts(run.records)}." for run in runs)
    refused = [record for run in runs for record in run.records if record.status != "ok"]
    parts = [lines, _refused(refused) if refused else "No case of these was refused or failed."]
    failed = [row for row in peers if row["status"] != "ok"]
    if failed:
        parts.append(f"Of the others' strategies:\n\n{_failed(failed)}")
    return "\n\n".join(parts)


def _refused(records: Iterable[Record]) -> str:
    found: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        message = re.sub(r"\d+(\.\d+)?", "#", record.message)
        found.setdefault((record.status, record.kernel, message), []).append(record)
    body = []
    for key in sorted(found):
        (status, kernel, _), alike = key, found[key]
        masks = _few(f"`{mask_name(record.pattern, record.factors)}`" for record in alike)
        ways = _few(Way(r.strategy or "", r.mesh or "", r.placement or "").strategy_and_placement for r in alike)
        body.append([status, f"`{kernel}`", masks, ways, str(len(alike)), _reason(alike[0].message)])
    return table(["status", "kernel", "masks", "strategies", "cases", "reason"], body, left={0, 1, 2, 3, 5})


def _failed(rows: Iterable[dict[str, Any]]) -> str:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["status"], row["name"], row["message"]), []).append(row)
    body = [
        [status, name, _few(f"`{row['mask']}` {tokens(row['seqlen'])}" for row in alike), _reason(message)]
        for (status, name, message), alike in found.items()
    ]
    return table(["status", "", "where", "reason"], body, left=range(4))


def _few(names: Iterable[str]) -> str:
    """Names, each once; how many they are where they are many."""
    known = list(dict.fromkeys(names))
    return (
        ", ".join(known) if len(known) <= _FEW else f"{', '.join(known[: _FEW - 1])} and {len(known) - _FEW + 1} more"
    )


def _reason(message: str) -> str:
    return escaped(message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…")


def covered(runs: Sequence[Run]) -> str:
    """What was verified on these runs' devices: of each strategy the meshes, placements and masks that were right."""
    found: dict[str, list[Record]] = {}
    for record in (record for run in runs for record in run.records):
        if record.strategy is not None and record.status == "ok":
            found.setdefault(record.strategy, []).append(record)
    body = [
        [
            f"`{strategy}`",
            ", ".join(dict.fromkeys(f"`{record.mesh}`" for record in records)),
            ", ".join(dict.fromkeys(f"`{record.placed}`" for record in records)),
            ", ".join(dict.fromkeys(f"`{record.pattern}`" for record in records)),
            str(len(records)),
        ]
        for strategy, records in found.items()
    ]
    return table(["strategy", "meshes", "placements", "masks", "cases"], body, left=range(4)) if body else "*Nothing.*"


def gaps(runs: Sequence[Run]) -> str:
    """Of the suite's cases on as many ranks as were measured, how many have a record, by kernel and length."""
    there = {_key(record) for run in runs for record in run.records if record.status != "skipped"}
    worlds = sorted({record.world_size or 1 for run in runs for record in run.records if record.strategy is not None})
    body = []
    for ranks in worlds:
        cases = expand(load_suite(SUITE), registry().kernels, strategies=registry().strategies, ranks=ranks)
        shapes: dict[tuple[str, int, str], list[Case]] = {}
        for case in cases:
            shapes.setdefault((case.kernel, case.seqlen, case.direction), []).append(case)
        for (kernel, seqlen, direction), asked in shapes.items():
            lacking = [case for case in asked if _key(case) not in there]
            if lacking:
                which = _few(f"`{case.pattern}`" for case in lacking)
                share = f"{len(asked) - len(lacking)} of {len(asked)}"
                body.append([str(ranks), f"`{kernel}`", tokens(seqlen), direction, share, which])
    if not body:
        return "Nothing: every case of the suite has a record."
    return table(["ranks", "kernel", "tokens", "", "recorded", "lacking some of"], body, left=(0, 1, 2, 3, 5))


def _key(about: Case | Record) -> tuple[object, ...]:
    names = ("kernel", "pattern", "seqlen", "heads_q", "heads_kv", "head_dim", "dtype", "direction", "seed")
    if isinstance(about, Record):
        way: tuple[object, ...] = about.strategy, about.placement, about.mesh
    else:
        assert about.parallel is not None
        way = about.parallel.strategy, about.parallel.placement, about.parallel.mesh_text
    return (*(getattr(about, name) for name in names), *way)
