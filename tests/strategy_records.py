"""Small records of several ranks, made by hand, and views of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from longca_bench.measuring.records import Record
from longca_bench.reports.markdown import markdown_of
from longca_bench.reports.rows import Rows
from longca_bench.reports.views import tables

MESHES = {
    "ulysses": "ulysses=4",
    "ring_p2p": "ring=4",
    "ring_all_gather": "ring=4",
    "usp": "ring=2,ulysses=2",
    "loongtrain": "outer=1,inner=2,heads=2",
}
#: Seconds of a forward by strategy, beside 1 s of the kernel alone; a backward takes twice as long.
TIMES = {"ulysses": 1.25, "ring_p2p": 2.0, "ring_all_gather": 1.6, "usp": 2.5, "loongtrain": 4.0}


def finding(tensor: str, error: float) -> dict[str, Any]:
    about = {"tensor": tensor, "passed": True, "error": error, "pytorch": error}
    return about | {"limit": 1.0, "token": 0, "head": 0, "note": ""}


def record(strategy: str, seconds: float | None, **fields: Any) -> Record:
    """A record of four ranks with 32 K tokens; the kernel alone takes 1 s, and has 100 TFLOP/s."""
    direction = fields.get("direction", "forward")
    alone, tensors = (1.0, ("out",)) if direction == "forward" else (2.0, ("dq", "dk", "dv"))
    pattern = fields.get("pattern", "full")
    ranks = fields.get("world_size", 4)
    flops = int(alone * ranks * 100e12)
    measured: dict[str, Any] = {}
    if seconds is not None:
        measured = {
            "median": seconds, "samples": (seconds,), "tflops": flops / ranks / seconds / 1e12, "alone_seconds": alone,
            "abreast_seconds": 1.25 * alone,
            "placed": "zigzag", "plan_seconds": 2e-3, "layout_seconds": 1e-3, "peak_bytes": 2**30,
            "rank_compute_seconds": (0.5, 0.75), "hidden": 0.25, "area_imbalance": 1.5, "time_imbalance": 1.25,
            "communication": {
                "p2p": {"calls": 3, "bytes": 3 * 2**20, "seconds": 0.25, "algbw": 300.0, "busbw": 299.0},
                "all": {"calls": 3, "bytes": 3 * 2**20, "seconds": 0.25, "algbw": 300.0, "busbw": 299.0},
            },
            "findings": tuple(finding(tensor, 4e-3) for tensor in tensors),
            "alone_findings": tuple(finding(tensor, 3e-3) for tensor in tensors),
        }  # fmt: skip
    about = {
        "case": f"{strategy}-{sorted(fields.items())}", "suite": "distributed", "suite_version": 1,
        "suite_digest": "1" * 16, "status": "ok" if seconds else "unsupported", "message": "" if seconds else "no.",
        "kernel": "fa3", "distribution": "d", "distribution_version": "1", "device": "Some GPU", "pattern": pattern,
        "seqlen": 2**15, "lengths": "mix", "seed": 0, "heads_q": 64, "heads_kv": 8, "head_dim": 128,
        "dtype": "bfloat16", "direction": direction, "mask_digest": pattern, "area": 1, "density": 1.0,
        "tile_efficiency": 1.0, "flops": flops, "strategy": strategy, "placement": "zigzag", "world_size": 4,
        "mesh": MESHES[strategy], "finished": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Record.model_validate({**about, **measured, **fields})


def matrix(pattern: str = "full", **fields: Any) -> list[Record]:
    """Every strategy on a mask, both directions, by one placement."""
    return [
        record(strategy, seconds * factor, pattern=pattern, direction=direction, **fields)
        for strategy, seconds in TIMES.items()
        for direction, factor in (("forward", 1), ("backward", 2))
    ]


def write(folder: Path, *runs: list[Record]) -> Path:
    """A folder of runs."""
    environment = {"device": {"name": "Some GPU"}, "packages": {"torch": "2.11.0"}, "plugins": {}}
    for number, records in enumerate(runs):
        run = folder / f"run{number}"
        run.mkdir(parents=True)
        (run / "records.jsonl").write_text("".join(r.model_dump_json() + "\n" for r in records), encoding="utf-8")
        (run / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    return folder


def part(view: str, path: Path) -> str:
    """A view of a folder of runs as Markdown."""
    return markdown_of(tables(view, Rows.read(path)))


def lines(text: str, *first: str) -> list[list[str]]:
    """The cells behind the first ones, of the rows that begin with these."""
    begins = "".join(rf"\| {re.escape(cell)} " for cell in first)
    return [row.split(" | ") for row in re.findall(rf"^{begins}\| (.*) \|$", text, re.MULTILINE)]


def line(text: str, *first: str) -> list[str]:
    (found,) = lines(text, *first)
    return found
