"""Layouts and validity for more and more ranks, on one CPU core: `python longca_cp/benchmarks/scale.py [--out F.json]`.

Every strategy lays a mask out for 8 to 1024 ranks of 8 K tokens each, by every suitable placement. Then three kernels
are asked whether they take every step. One takes unknown masks as up to three layers, one takes them by intervals of
keys, and one takes any mask by intervals of queries. Nothing is cached when a layout begins. The kernels share its cuts
if these are few enough to be cached.

Each time is the CPU time of one run. The record also has the forms that the steps use, and none if a kernel refuses a
step. On 512 ranks kernels are asked for the ring alone, whose steps grow with the square of the ranks. They are not
asked for placement within documents, because each step then has a piece of every document. On 1024 ranks only layouts
are made.
"""

from __future__ import annotations

import os

# Before numpy is loaded: a BLAS thread pool would count as more than one core.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import datetime
import json
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from layouts import KERNELS, fresh, kernel
from rich.console import Console
from rich.table import Table

from longca import KernelManifest, registry
from longca.errors import UnsupportedError
from longca_bench.suites.meshes import equal_mesh

RANKS, EACH = (8, 32, 128, 512, 1024), 8192
PATTERNS = ("causal", "causal_document", "shared_question")
COLUMNS = kernel("columns", "column_intervals", 8)


def cases() -> Iterator[tuple[str, str, str]]:
    """(pattern, strategy, placement) of each layout to make."""
    for pattern in PATTERNS:
        for strategy, manifest in registry().strategies.items():
            yield from ((pattern, strategy, placement) for placement in manifest.placements)


def asked(ranks: int, strategy: str, placement: str) -> tuple[KernelManifest, ...]:
    """The kernels that are asked whether they take the steps of a layout."""
    few = ranks <= 128 or (ranks <= 512 and strategy == "ring_p2p" and placement != "zigzag_document")
    return (*KERNELS, COLUMNS) if few else ()


def measure(ranks: int, pattern: str, strategy: str, placement: str) -> dict[str, Any] | None:
    """The time of one layout, and whether each kernel takes its steps. None if there is no such layout."""
    axes = registry().strategy(strategy).axes
    sizes = dict(zip(axes, equal_mesh(ranks, len(axes)), strict=True))
    problem = fresh(pattern, ranks * EACH)
    start = time.process_time()
    try:
        layout = registry().layout(strategy, problem, sizes, placement)
    except UnsupportedError:
        return None
    row: dict[str, Any] = {"ranks": ranks, "pattern": pattern, "strategy": strategy, "placement": placement}
    row |= {"steps": len(layout.table.table), "layout_seconds": time.process_time() - start, "kernels": {}}
    for manifest in asked(ranks, strategy, placement):
        start = time.process_time()
        verdict = registry().resolve(manifest, problem, layout)
        forms = [str(offer.form) for offer in verdict.offers]
        row["kernels"][manifest.name] = {"seconds": time.process_time() - start, "forms": forms}
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the times."""
    table = Table(
        "ranks",
        "pattern",
        "strategy",
        "placement",
        "steps",
        "layout",
        *(manifest.name for manifest in (*KERNELS, COLUMNS)),
    )
    for row in rows:
        about = [str(row[name]) for name in ("ranks", "pattern", "strategy", "placement", "steps")]
        times = [f"{each['seconds']:.2f} {'' if each['forms'] else 'none'}" for each in row["kernels"].values()]
        table.add_row(*about, f"{row['layout_seconds']:.2f}", *times)
    Console(width=140).print(table)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="numbers of ranks, even ones")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    registry().layout("ulysses", fresh("full", 128), {"ulysses": 1})  # imports what there is to import
    made = (measure(ranks, *case) for ranks in options.ranks for case in cases())
    rows = [row for row in made if row is not None]
    show(rows)
    if options.out:
        about = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tokens_per_rank": EACH,
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        }
        options.out.write_text(json.dumps({**about, "layouts": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
