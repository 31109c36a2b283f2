"""The cost of masks on one CPU core, from 64 K to 4 M tokens: `python core/benchmarks/masks.py [--out FILE.json]`.

Every static pattern is sampled with documents of `prolong512k` and taken through each step that a case of the
benchmark may ask of it. A step starts from a mask that has nothing cached, so that its time is its own and that of
all it builds on: blocks by key block include the intervals of both axes. Cuts are those of zigzag placement over 96
ranks, where rank r has chunks r and 191 − r of 192: the queries of each rank against all keys, as an all-gather takes
them, and the queries of one rank against the keys of each, as a ring does.

Time and memory are measured in passes of their own, because tracemalloc slows what it watches several times over.
Time is the median of three runs; memory is the peak that the step allocates above what was there before it.

The promise is that at 1 M tokens each step takes less than a second and less than 500 MB; the exit code is 1 where it
does not hold.
"""

from __future__ import annotations

import os

# Before numpy is loaded: a BLAS thread pool would count as more than one core.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from longca.manifests.devices import cpu_device
from longca.masks import PATTERNS, SliceMask, sample

SEQLENS = (2**16, 2**18, 2**20, 2**22)
PROMISED_SEQLEN, MAX_SECONDS, MAX_BYTES = 2**20, 1.0, 500e6
WORLD_SIZE, RANK = 96, 37
RUNS = 3

Step = Callable[[str, SliceMask], object]


class Cost(NamedTuple):
    """The cost of one step of one pattern."""

    pattern: str
    seqlen: int
    step: str
    seconds: float
    peak_bytes: int

    @property
    def keeps_promise(self) -> bool:
        """Whether it is fast and small enough, or at another length than the promise is made for."""
        return self.seqlen != PROMISED_SEQLEN or (self.seconds < MAX_SECONDS and self.peak_bytes < MAX_BYTES)


def main() -> int:
    """Measures, prints two tables, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description="Measures what masks cost on one CPU core.")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    out: Path | None = parser.parse_args().out
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    patterns = [name for name, pattern in PATTERNS.items() if not pattern.per_head]
    console = Console()
    costs: list[Cost] = []
    with console.status("measuring") as status:
        for seqlen in SEQLENS:
            for pattern in patterns:
                status.update(f"measuring {pattern} at {seqlen} tokens")
                costs += measure(pattern, seqlen)
    console.print(steps_table(costs), growth_table(costs))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"environment": environment(), "costs": [c._asdict() for c in costs]}, indent=1))
    broken = [c for c in costs if not c.keeps_promise]
    for cost in broken:
        console.print(
            f"broken promise: {cost.pattern}, {cost.step}: {cost.seconds:.2f} s, {cost.peak_bytes / 1e6:.0f} MB"
        )
    return 1 if broken else 0


def measure(pattern: str, seqlen: int) -> list[Cost]:
    """The cost of each step for one pattern at one length."""
    drawn = draw(pattern, seqlen)
    costs = []
    for name, step in STEPS.items():
        seconds = statistics.median(timed(step, pattern, drawn) for _ in range(RUNS))
        costs.append(Cost(pattern, seqlen, name, seconds, peak(step, pattern, drawn)))
    return costs


def timed(step: Step, pattern: str, drawn: SliceMask) -> float:
    """Seconds that a step takes on a mask with nothing cached."""
    mask = fresh(drawn)
    start = time.perf_counter()
    step(pattern, mask)
    return time.perf_counter() - start


def peak(step: Step, pattern: str, drawn: SliceMask) -> int:
    """Bytes that a step allocates at its peak, above what was there before it."""
    mask = fresh(drawn)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        step(pattern, mask)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def draw(pattern: str, seqlen: int) -> SliceMask:
    """The mask of a pattern that is measured."""
    mask = sample(pattern, seqlen, lengths="prolong512k", seed=0)
    assert isinstance(mask, SliceMask)
    return mask


def fresh(mask: SliceMask) -> SliceMask:
    """The same mask with nothing cached."""
    return SliceMask(mask.array, mask.seqlen_q, mask.seqlen_k)


def shards(seqlen: int) -> list[list[tuple[int, int]]]:
    """Each rank's zigzag share: chunks r and 191 − r of 192."""
    bounds = np.linspace(0, seqlen, 2 * WORLD_SIZE + 1).astype(int).tolist()
    chunks = list(pairwise(bounds))
    return [[chunks[rank], chunks[-1 - rank]] for rank in range(WORLD_SIZE)]


def cut_to_shards(mask: SliceMask) -> list[SliceMask]:
    """Each rank's queries against all keys."""
    return [mask.cut(shard, [(0, mask.seqlen_k)]) for shard in shards(mask.seqlen_q)]


def cut_to_ring_steps(mask: SliceMask) -> list[SliceMask]:
    """One rank's queries against the keys of every rank."""
    mine = shards(mask.seqlen_q)[RANK]
    return [mask.cut(mine, theirs) for theirs in shards(mask.seqlen_k)]


STEPS: dict[str, Step] = {
    "sample": lambda pattern, mask: draw(pattern, mask.seqlen_q),
    "area": lambda _, mask: mask.area,
    "row intervals": lambda _, mask: mask.row_intervals(),
    "column intervals": lambda _, mask: mask.column_intervals(),
    "blocks by query": lambda _, mask: mask.blocks(128, 128).by_query,
    "blocks by key": lambda _, mask: mask.blocks(128, 128).by_key,
    "digest": lambda _, mask: mask.digest,
    "96 shards": lambda _, mask: cut_to_shards(mask),
    "96 ring steps": lambda _, mask: cut_to_ring_steps(mask),
}


def steps_table(costs: list[Cost]) -> Table:
    """A row a pattern and a column a step, at the length of the promise."""
    table = Table(title=f"{size(PROMISED_SEQLEN)} tokens: ms / MB", header_style="bold")
    table.add_column("pattern")
    for step in STEPS:
        table.add_column(step, justify="right")
    here = {(c.pattern, c.step): c for c in costs if c.seqlen == PROMISED_SEQLEN}
    for pattern in dict.fromkeys(c.pattern for c in costs):
        table.add_row(pattern, *(cell(here[pattern, step]) for step in STEPS))
    return table


def growth_table(costs: list[Cost]) -> Table:
    """A row a step and a column a length: the slowest pattern's time and the largest one's memory."""
    table = Table(title="the worst pattern of each step: ms / MB", header_style="bold")
    table.add_column("step")
    for seqlen in SEQLENS:
        table.add_column(size(seqlen), justify="right")
    for step in STEPS:
        row = []
        for seqlen in SEQLENS:
            mine = [c for c in costs if (c.step, c.seqlen) == (step, seqlen)]
            row.append(cell(Cost("", 0, "", max(c.seconds for c in mine), max(c.peak_bytes for c in mine))))
        table.add_row(step, *row)
    return table


def cell(cost: Cost) -> str:
    """Milliseconds and megabytes."""
    return f"{cost.seconds * 1e3:.2f} / {cost.peak_bytes / 1e6:.1f}"


def size(seqlen: int) -> str:
    """A length in binary units."""
    return f"{seqlen // 2**20} M" if seqlen >= 2**20 else f"{seqlen // 2**10} K"


def environment() -> dict[str, str]:
    """The machine and the versions of the measurements."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu_device().name,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
