"""The measured parts of the page on block-sparse masks, from the records in `results/` when the docs are built.

Runs and what was measured beside them on a GPU lie in `results/h200/sparse`; what was counted on a CPU in
`results/sparse/fill.json`; the paper's figures in `results/paper`. Further runs in the folder come into the tables by
themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sparse_costs
import sparse_fill
import sparse_gaps
import sparse_kept
import sparse_paper
import sparse_tables
from measured_page import DOCS, environment, filled, missing, not_measured, runs_in

from longca_bench.reports.run_cells import counts
from longca_bench.reports.run_source import Run

_RESULTS = DOCS.parent / "results"
_TUNE = "python longca_vsa/benchmarks/tune.py --heads 64 8 --threads 12"
#: What makes each file, for the message where it is missing, and for the page.
_MADE_BY = {
    "records.jsonl": "longca run results/h200/sparse/half.toml --out {folder}/half",
    "kept": "longca run kept --heads 64:8 --direction forward --out {folder}/kept",
    "run16k": "longca run sparse --seqlen 16384 --out {folder}/run16k",
    "metadata.json": (
        "python core/benchmarks/block_metadata.py --kernels vsa vsa_triton bsa flashinfer_fa2 flashinfer_fa3 flex fa4"
        " --heads 64:8 64:64 --out {folder}/metadata.json"
    ),
    "tune-gqa128.json": f"{_TUNE} --block 128 --out {{folder}}/tuning/tune-gqa128.json",
    "tune-var.json": f"{_TUNE} --variable 128 --out {{folder}}/tuning/tune-var.json",
    "fill.json": "python longca_vsa/benchmarks/fill.py results/h200/sparse/half.toml --out results/sparse/fill.json",
}


@dataclass(frozen=True)
class Places:
    """Where things lie.

    Attributes:
        records: The folder of what was measured.
        fill: The record of what was counted.
        charts: The folder for charts, which are drawn when the docs are built.
        paper: The paper's tables.
    """

    records: Path = _RESULTS / "h200" / "sparse"
    fill: Path = _RESULTS / "sparse" / "fill.json"
    charts: Path = DOCS / "_build" / "charts"
    paper: Path = _RESULTS / "paper" / "longca_bench_tables_3_to_8.json"


@dataclass(frozen=True)
class Results:
    """Everything that was measured, and what the paper has of it.

    Attributes:
        places: Where it lies.
        runs: The runs.
        fill: Rows of how many computed pairs are visible, by mask and heads.
        metadata: Rows of what planning costs by kernel, heads and length; None where it was not measured yet.
        times: Milliseconds of each of bsa's kernels on uniform and on variable blocks, where both were measured.
        paths: Rows of what bsa's path for blocks of any sizes costs; None where it was not measured yet.
        paper: The paper's figures.
    """

    places: Places
    runs: tuple[Run, ...]
    fill: tuple[dict[str, Any], ...]
    metadata: tuple[dict[str, Any], ...] | None
    times: dict[str, tuple[float, float]]
    paths: tuple[dict[str, Any], ...] | None
    paper: tuple[sparse_paper.Figure, ...]


def fill(page: str, places: Places = Places()) -> str:
    """A page with its markers replaced; one without any needs no records.

    Raises:
        FileNotFoundError: A marker asks for what was not measured.
    """
    return filled(page, MEASURED, lambda: load(places))


@cache
def load(places: Places) -> Results:
    """Reads the results.

    Raises:
        FileNotFoundError: There are no records of a run, or nothing was counted, and the message says what makes it; or
            the paper's tables are not there.
    """
    runs = runs_in(places.records, _missing(places.records / "records.jsonl", places))
    if not places.fill.exists():
        raise _missing(places.fill, places)
    tuning = places.records / "tuning"
    return Results(
        places,
        runs,
        tuple(_json(places.fill)["rows"]),
        _rows(places.records / "metadata.json"),
        sparse_fill.tuned_times(tuning),
        _rows(tuning / "paths.json"),
        sparse_paper.read(places.paper),
    )


def _rows(path: Path) -> tuple[dict[str, Any], ...] | None:
    return tuple(_json(path)["rows"]) if path.exists() else None


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _missing(path: Path, places: Places) -> FileNotFoundError:
    return missing("block-sparse masks", path, _MADE_BY[path.name].format(folder=places.records))


def _metadata(results: Results) -> str:
    if results.metadata is None:
        return (
            "*Not measured yet.* The command above measures it, and tables of its record come in here."
            " [Planning and memory in these runs](#planning-and-memory-in-these-runs) has what the runs recorded."
        )
    return sparse_costs.metadata(results.metadata)


def _paths(results: Results) -> str:
    if results.paths is None:
        return "*Not measured yet.* The command above measures it."
    return sparse_fill.paths(results.paths)


def _statuses(results: Results) -> str:
    lines = "\n".join(f"- `{run.folder.name}`: {counts(run.records)}." for run in results.runs)
    return f"{lines}\n\n{not_measured(results.runs)}"


#: Every measured part by its name.
MEASURED: dict[str, Callable[[Results], str]] = {
    "environment": lambda results: environment(results.runs),
    "throughput": lambda results: sparse_tables.throughput_tables(results.runs),
    "ratios": lambda results: sparse_tables.ratios(results.runs),
    "kept_chart": lambda results: sparse_kept.chart(results.runs, results.places.charts),
    "kept": lambda results: sparse_kept.crossings(results.runs),
    "fill": lambda results: sparse_fill.by_direction(results.runs, results.fill),
    "fill_by_kernel": lambda results: sparse_fill.by_kernel(results.fill, results.times),
    "paths": _paths,
    "paper": lambda results: sparse_paper.beside(results.runs, results.paper),
    "flex": lambda results: sparse_tables.small_blocks(results.runs, "flex"),
    "flex_paper": lambda results: sparse_paper.small_blocks(results.paper, "FlexAttention"),
    "metadata": _metadata,
    "costs": lambda results: sparse_costs.costs(results.runs),
    "first_plans": lambda results: sparse_costs.first_plans(results.runs),
    "gaps": lambda results: sparse_gaps.gaps(results.runs),
    "not_measured": _statuses,
}
