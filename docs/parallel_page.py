"""The measured parts of the page on context parallelism, from the records in `results/h200/distributed`.

Runs of the suite `distributed` lie in folders there; further ones come into the tables by themselves. What other
people's strategies took beside ours lies in `peers.json`, and what transfers cost beside a kernel in `overlap*.json`;
the page says where either is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import parallel_costs
import parallel_gaps
import parallel_guide
import parallel_overlap
import parallel_tables
from measured_page import DOCS, environment, filled, missing, runs_in
from parallel_ways import Setting, settings

from longca_bench.reports.run_source import Run

RESULTS = DOCS.parent / "results" / "h200" / "distributed"
#: What makes each file, for the message where it is missing, and for the page.
_MADE_BY = {
    "records.jsonl": (
        "longca run distributed --nproc 2 --placement auto --mask full --mask causal --kernel fa3 --out {folder}/two"
    ),
    "peers.json": (
        "torchrun --standalone --nproc-per-node 2 longca_cp/benchmarks/peers.py --seqlens 16384 65536"
        " --out {folder}/peers.json"
    ),
}


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        folder: Where it lies.
        runs: The runs in it.
    """

    folder: Path
    runs: tuple[Run, ...]

    @cached_property
    def settings(self) -> list[Setting]:
        """The records by kernel, length, number of ranks and shape."""
        return settings(self.runs)

    @cached_property
    def peers(self) -> dict[str, Any] | None:
        """What others took beside ours; None where it was not measured."""
        path = self.folder / "peers.json"
        found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return found

    @cached_property
    def overlaps(self) -> list[dict[str, Any]]:
        """The records of what transfers cost beside a kernel."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("overlap*.json"))]


def fill(page: str, folder: Path = RESULTS) -> str:
    """A page with its markers replaced; one without any needs no records.

    Raises:
        FileNotFoundError: A marker asks for what was not measured.
    """
    return filled(page, MEASURED, lambda: load(folder))


@cache
def load(folder: Path) -> Results:
    """Reads a folder of results.

    Raises:
        FileNotFoundError: There are no records; the message says what makes them.
    """
    made_by = _MADE_BY["records.jsonl"].format(folder=folder)
    return Results(folder, runs_in(folder, missing("context parallelism", folder / "records.jsonl", made_by)))


def _peers(results: Results) -> str:
    """What they are, and the tables."""
    if (found := results.peers) is None:
        return "*Not measured yet.*"
    versions = [f"{name} {version}" for name, version in sorted(found["versions"].items()) if version]
    about = [
        *versions,
        *([f"NCCL {found['nccl']}"] if found["nccl"] else []),
        f"the peers' kernel: {found['flash_attn']}",
    ]
    return f"{', '.join(about)}.\n\n{parallel_tables.peers(found['rows'])}"


#: Every measured part by its name.
MEASURED: dict[str, Callable[[Results], str]] = {
    "environment": lambda results: environment(results.runs),
    "throughput": lambda results: parallel_tables.throughput(results.settings),
    "peers": _peers,
    "overlap": lambda results: parallel_overlap.overlap(results.overlaps) or "*Not measured yet.*",
    "ratios": lambda results: parallel_tables.ratios(results.settings),
    "best": lambda results: parallel_guide.best(results.settings),
    "expectations": lambda results: parallel_guide.expectations(results.settings),
    "time": lambda results: parallel_costs.where_time_goes(results.settings),
    "bandwidth": lambda results: parallel_costs.bandwidth(results.settings),
    "memory": lambda results: parallel_costs.memory(results.settings),
    "memory_by_ranks": lambda results: parallel_costs.memory_by_ranks(results.settings),
    "errors": lambda results: parallel_costs.errors(results.settings),
    "covered": lambda results: parallel_gaps.covered(results.runs),
    "gaps": lambda results: parallel_gaps.gaps(results.runs),
    "not_measured": lambda results: parallel_gaps.not_measured(results.runs, (results.peers or {"rows": []})["rows"]),
}
