"""The measured parts of the page on dense masks, from the records in `results/h200/dense` when the docs are built."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dense_profile import layers, profile
from dense_tables import Tables
from measured_page import DOCS, environment, filled, link, missing, not_measured, runs_in, table

from longca_bench.reports.run_cells import three_digits, tokens
from longca_bench.reports.run_source import Run

RESULTS = DOCS.parent / "results" / "h200" / "dense"
_PLANNING = "python core/benchmarks/planning.py --kernels fa2 fa3 fa4 flex cudnn flashmask --out {folder}"
#: What makes each file, for the message where it is missing.
_MADE_BY = {
    "records.jsonl": ("longca run dense --heads 64:8 --seed 0 --seed 1 --seqlen 32768 $kernels --out {folder}/run32k"),
    "planning.json": _PLANNING,
    "planning.png": _PLANNING,
    "changing_masks.json": (
        "python core/benchmarks/changing_masks.py --kernels fa3 fa4 flex flashmask --seqlens 32768"
        " --out {folder}/changing_masks.json"
    ),
    "ablation.json": "python longca_flashattn/benchmarks/ablation.py --out {folder}/ablation.json",
    "layers.json": "python longca_flashattn/benchmarks/layers.py --out {folder}/layers.json",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        folder: Where it lies.
        runs: The runs in it.
        planning: Rows of what planning costs, by kernel, mask and length.
        limits: Milliseconds that planning may take, by length.
        training: Rows of training steps whose masks change.
        ablation: Rows of where fa4's time goes.
        layers: Rows of layers beside fa4.
    """

    folder: Path
    runs: tuple[Run, ...]
    planning: tuple[Row, ...]
    limits: dict[int, float]
    training: tuple[Row, ...]
    ablation: tuple[Row, ...]
    layers: tuple[Row, ...]

    @property
    def link(self) -> str:
        """The folder as the docs' pages see it."""
        return link(self.folder)


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
        FileNotFoundError: Something is missing; the message says what makes it.
    """
    runs = runs_in(folder, _missing(folder, "records.jsonl"))
    names = ("planning.json", "changing_masks.json", "ablation.json", "layers.json")
    planning, training, ablation, beside = (_json(folder, name) for name in names)
    if not (folder / "planning.png").exists():
        raise _missing(folder, "planning.png")
    return Results(
        folder,
        runs,
        tuple(planning["rows"]),
        {int(seqlen): limit for seqlen, limit in planning["limits_ms"].items()},
        tuple(training["rows"]),
        tuple(ablation["rows"]),
        tuple(beside["rows"]),
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).exists():
        raise _missing(folder, name)
    found: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return found


def _missing(folder: Path, name: str) -> FileNotFoundError:
    return missing("dense masks", folder / name, _MADE_BY[name].format(folder=folder))


def planning(results: Results) -> str:
    """The chart, and tables of the worst mask's time and bytes by kernel and length."""
    planned = [row for row in results.planning if row["status"] == "ok"]
    lengths = sorted({row["seqlen"] for row in planned})
    parts = [f"![Planning by length, a line a kernel]({results.link}/planning.png)"]
    for title, field, factor in (
        ("Milliseconds from slices to everything on the device", "seconds", 1e3),
        ("MiB of block lists", "list_bytes", 2**-20),
        ("MiB of everything else", "other_bytes", 2**-20),
        ("MiB, the allocator's peak while planning", "peak_bytes", 2**-20),
    ):
        limits = results.limits if field == "seconds" else {}
        if not any(row[field] for row in planned):
            continue
        parts.append(f"{title}, of the worst mask:\n\n{_by_length(planned, lengths, field, factor, limits)}")
    counts = [
        [f"`{kernel}`", *(str(len(_of(planned, kernel, seqlen))) for seqlen in lengths)] for kernel in _kernels(planned)
    ]
    parts.append(f"Masks that were planned:\n\n{table(['kernel', *map(_length, lengths)], counts)}")
    return "\n\n".join(parts)


def _by_length(rows: Sequence[Row], lengths: Sequence[int], field: str, factor: float, limits: dict[int, float]) -> str:
    body = []
    for kernel in _kernels(rows):
        worst = [max((row[field] or 0 for row in _of(rows, kernel, n)), default=None) for n in lengths]
        body.append([f"`{kernel}`", *("–" if value is None else three_digits(value * factor) for value in worst)])
    if limits:
        body.append(["*limit*", *(three_digits(limits[n]) if n in limits else "" for n in lengths)])
    return table(["kernel", *map(_length, lengths)], body)


def _of(rows: Sequence[Row], kernel: str, seqlen: int) -> list[Row]:
    return [row for row in rows if (row["kernel"], row["seqlen"]) == (kernel, seqlen)]


def _kernels(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["kernel"] for row in rows))


def _length(seqlen: int) -> str:
    return tokens(seqlen) if seqlen < 2**20 else f"{seqlen // 2**20} M"


def training(results: Results) -> str:
    """Steps whose mask changes: with planning at every step, and with a plan that is there."""
    heads = (
        "mask",
        "tokens",
        "kernel",
        "steps",
        "ms a step",
        "plan kept",
        "plan alone",
        "share",
        "overhead",
        "compiled",
    )
    body = []
    for row in results.training:
        name = [f"`{row['pattern']}`", tokens(row["seqlen"]), f"`{row['kernel']}`"]
        if row["status"] != "ok":
            body.append([*name, row["status"], *[""] * 6])
            continue
        times = (three_digits(row[field] * 1e3) for field in ("step_seconds", "reused_seconds", "plan_seconds"))
        shares = (f"{row[field]:.1%}" for field in ("plan_share", "overhead"))
        body.append([*name, str(row["steps"]), *times, *shares, str(row["compilations"])])
    shapes = dict.fromkeys(f"{row['layers']} layers, {row['heads']} heads" for row in results.training)
    return f"{'; '.join(shapes)}:\n\n{table(heads, body, left=(0, 2))}"


#: Every measured part by its name.
MEASURED: dict[str, Callable[[Results], str]] = {
    "environment": lambda results: environment(results.runs),
    "throughput": lambda results: Tables(results.runs).throughput(),
    "over_baseline": lambda results: Tables(results.runs).over_baseline(),
    "near_limit": lambda results: Tables(results.runs).near_limit(),
    "costs": lambda results: Tables(results.runs).costs(),
    "ablation": lambda results: profile(results.ablation),
    "layers": lambda results: layers(results.layers),
    "not_measured": lambda results: not_measured(results.runs),
    "planning": planning,
    "training": training,
}
