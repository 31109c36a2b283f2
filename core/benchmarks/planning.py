"""What planning costs: from a mask's slices to everything that a kernel needs on the device, from 8 K to 1 M tokens.

    python core/benchmarks/planning.py [--kernels flex fa4] [--max-seqlen 1048576] [--out results/h200/dense]

Every kernel plans every static pattern that it takes, 64:8 heads of 128 in bfloat16 (float32 on a CPU), for the
backward, which needs the most. A sample starts from a mask of which nothing but the slices is known, and ends when the
device is done. The first call, which compiles, is apart; the figure is the median of five after it.

Bytes are those of the plan's tensors, its block lists apart (they alone may grow with the square of the length), and
the allocator's peak while planning. Writes planning.json and planning.png: the worst mask of each kernel by length,
beside the limits of 10 ms at 128 K and 150 ms at 1 M tokens. A kernel or length that is refused, or for which memory
runs out, is kept as what it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan_costs import planned, training, write_rows

from longca import registry
from longca.manifests import Device
from longca.manifests.devices import current_device
from longca.masks import PATTERNS, SliceMask, sample
from longca_bench.measuring.environment import surroundings
from longca_bench.reports.chart_axes import look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, MOST = 2**13, 2**20
#: Milliseconds that planning may take, by tokens.
LIMITS = {2**17: 10.0, 2**20: 150.0}


def measure(kernel: str, pattern: str, seqlen: int, device: Device) -> dict[str, Any]:
    """What one kernel needs to plan one mask."""
    drawn = sample(pattern, seqlen, lengths="auto", seed=0)
    assert isinstance(drawn, SliceMask)
    about = {"kernel": kernel, "pattern": pattern, "seqlen": seqlen, "slices": len(drawn.array)}
    return {**about, **planned(kernel, training(drawn, "64:8", device))}


def worst(rows: Sequence[dict[str, Any]], kernel: str, field: str) -> Iterator[tuple[int, float]]:
    """Lengths with a kernel's largest value of a field over the masks, as far as it planned any there."""
    for seqlen in sorted({row["seqlen"] for row in rows}):
        values = [
            value
            for row in rows
            if (row["kernel"], row["seqlen"], row["status"]) == (kernel, seqlen, "ok") and (value := row[field])
        ]
        if values:
            yield seqlen, max(values)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Time and bytes by length, a line a kernel, each the worst of its masks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), dpi=200, layout="constrained")
    time_axes, size_axes = figure.subplots(1, 2)
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    drawn = [(time_axes, "seconds", 1e3, "-")]
    drawn += [(size_axes, field, 2**-20, dashes) for field, dashes in (("other_bytes", "-"), ("list_bytes", "--"))]
    for kernel in kernels:
        colour, marker = look_of(kernel, kernels)
        for axes, field, factor, dashes in drawn:
            points = list(worst(rows, kernel, field))
            if points:
                lengths, values = zip(*points, strict=True)
                style: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker, "label": kernel}
                axes.plot(lengths, [value * factor for value in values], markersize=3.5, linewidth=1.2, **style)
    time_axes.plot(list(LIMITS), list(LIMITS.values()), "v", color="black", markersize=5, markerfacecolor="none")
    where: dict[str, Any] = {"textcoords": "offset points", "xytext": (-6, 0), "ha": "right", "va": "center"}
    for seqlen, limit in LIMITS.items():
        time_axes.annotate(f"limit {limit:g} ms", (seqlen, limit), fontsize=6, **where)
    _finish(time_axes, "plan, ms: the worst mask", rows)
    _finish(size_axes, "on the device, MiB: block lists dashed, the rest solid", rows)
    time_axes.legend(frameon=False, fontsize=6)
    figure.savefig(path)


def _finish(axes: Axes, label: str, rows: Sequence[dict[str, Any]]) -> None:
    lengths = sorted({row["seqlen"] for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n // 2**10} K" if n < 2**20 else f"{n // 2**20} M" for n in lengths])
    axes.set_xlabel("tokens", fontsize=7)
    axes.set_ylabel(label, fontsize=7)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=6.5)
    axes.grid(True, which="major", color="#e3e6ea", linewidth=0.6)


def main() -> None:
    """Measures, prints the worst mask of each kernel and length, and writes the record and the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=[name for name in registry().kernels if name != "naive"])
    parser.add_argument("--max-seqlen", type=int, default=MOST)
    parser.add_argument("--out", type=Path, help="folder for planning.json and planning.png")
    asked = parser.parse_args()
    device = current_device()
    patterns = [name for name, pattern in PATTERNS.items() if not pattern.per_head]
    lengths = [n for n in (2**power for power in range(13, 21)) if LEAST <= n <= asked.max_seqlen]
    rows = []
    for kernel in asked.kernels:
        for seqlen in lengths:
            rows += [measure(kernel, pattern, seqlen, device) for pattern in patterns]
            here = [row for row in rows[-len(patterns) :] if row["status"] == "ok"]
            slowest = max((row["seconds"] * 1e3 for row in here), default=0.0)
            largest = max((row["metadata_bytes"] / 2**20 for row in here), default=0.0)
            about = f"{kernel:12}{seqlen:>9}: {len(here):>2} masks planned"
            print(f"{about}, at most {slowest:9.3f} ms, {largest:9.3f} MiB", flush=True)
    if asked.out:
        head = {"environment": surroundings(registry(), device), "limits_ms": LIMITS}
        write_rows(asked.out / "planning.json", head, rows)
        draw(rows, asked.out / "planning.png")


if __name__ == "__main__":
    main()
