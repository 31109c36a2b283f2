"""The time of planning a placement on one CPU core: `python longca_cp/benchmarks/layouts.py [--out FILE.json]`.

Every static pattern is sampled with documents of `prolong512k`. `auto` places it for each strategy and two kernels. One
kernel takes unknown masks as up to three layers, and the other takes them by intervals. The choice lays out every
placement, cuts the mask for every step of every rank, resolves all steps and weighs the valid placements. Each run
starts from a mask without cached results. The record has the time, the chosen placement, the excess of its busiest rank
over the mean, and the ratio of its predicted cost to the cost of evenly shared tiles without waste.

At 128 K tokens on 8 ranks a choice has to take less than half a second. The exit code is 1 if it takes longer. Times
are the least of three runs, because other work on the machine can only add to them.
"""

from __future__ import annotations

import os

# Before numpy is loaded: a BLAS thread pool would count as more than one core.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import datetime
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from longca import KernelManifest, Offer, Problem, masks, registry
from longca.errors import UnsupportedError
from longca.manifests import Device, Direction
from longca_advice.nominal import imbalance, predicted_cost
from longca_advice.placing import place

MAX_SECONDS, RUNS = 0.5, 3
NATIVE = ("full", "causal", "window", "varlen")
AXES = {"ring_p2p": ("ring",), "ring_all_gather": ("ring",), "usp": ("ring", "ulysses")}


def kernel(name: str, form: str, most: int) -> KernelManifest:
    """A kernel of no library, for one GPU, that takes common masks as they are and others in one form."""
    common: dict[str, Any] = {
        "dtypes": ("bfloat16",),
        "verified_on": "==9.0",
        "unequal_lengths": True,
        "metadata": "O(S)",
    }
    offers = [{"form": native} for native in NATIVE] + [{"form": form, "most": most}]
    return KernelManifest(
        name=name,
        title=name,
        upstream="-",
        license="Apache-2.0",
        family="none",
        implementation="none:None",
        offers=tuple(Offer.model_validate({**common, "backward": "external", **offer}) for offer in offers),
    )


KERNELS = (kernel("layers", "layers", 3), kernel("intervals", "row_intervals", 8))


def fresh(pattern: str, seqlen: int) -> Problem:
    """The paper's heads on a mask of which nothing is cached."""
    mask = masks.sample(pattern, seqlen=seqlen, lengths="prolong512k", seed=0)
    return Problem(mask=mask, heads_q=64, heads_kv=8, device=Device("cuda", (9, 0)), direction=Direction.BACKWARD)


def choose(pattern: str, strategy: str, manifest: KernelManifest, seqlen: int, world_size: int) -> dict[str, Any]:
    """One choice: its time and its result."""
    axes = AXES[strategy]
    sizes = {axes[0]: world_size} if len(axes) == 1 else {axes[0]: world_size // 2, axes[1]: 2}
    seconds = []
    row: dict[str, Any] = {"pattern": pattern, "strategy": strategy, "kernel": manifest.name}
    for _ in range(RUNS):
        problem = fresh(pattern, seqlen)
        start = time.perf_counter()
        try:
            placement, layout = place(registry(), strategy, manifest, problem, sizes)
        except UnsupportedError:
            placement, layout = None, None
        seconds.append(time.perf_counter() - start)
    row |= {"seconds": min(seconds), "placement": placement}
    if layout is not None:
        even = problem.area / world_size
        row |= {"imbalance": imbalance(problem, layout), "cost": predicted_cost([manifest], problem, layout) / even}
    return row


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the choices."""
    table = Table("pattern", "strategy", "kernel", "placement", "imbalance", "cost", "ms")
    for row in rows:
        figures = [f"{row[name]:.3f}" if name in row else "" for name in ("imbalance", "cost")]
        named = (row[name] for name in ("pattern", "strategy", "kernel"))
        table.add_row(*named, row["placement"] or "none", *figures, f"{row['seconds'] * 1e3:.0f}")
    Console(width=120).print(table)


def main() -> int:
    """Chooses, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=2**17, help="tokens in all")
    parser.add_argument("--world-size", type=int, default=8, help="ranks, an even number")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    place(
        registry(), "usp", KERNELS[0], fresh("full", 128), {"ring": 1, "ulysses": 1}
    )  # imports what there is to import
    rows = [
        choose(name, strategy, manifest, options.seqlen, options.world_size)
        for name, pattern in masks.PATTERNS.items()
        if not pattern.per_head
        for strategy in AXES
        for manifest in KERNELS
    ]
    show(rows)
    if options.out:
        about = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "seqlen": options.seqlen,
            "world_size": options.world_size,
        }
        options.out.write_text(json.dumps({**about, "choices": rows}, indent=1) + "\n", "utf-8")
    slowest = max(row["seconds"] for row in rows)
    print(f"the slowest choice took {slowest:.2f} s; promised are {MAX_SECONDS} s at 128 K tokens on 8 ranks")
    return int(slowest > MAX_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
