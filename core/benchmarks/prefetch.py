"""What `longca.prefetch` buys on this host: steps of a loop whose mask changes, with a device that is only imitated.

    python core/benchmarks/prefetch.py [--seqlens 8192 16384] [--steps 20] [--device-ms 50] [--out FILE.json]

A step waits for the imitated device, and needs the plan of its mask. The host either sleeps, as a host that is ahead of
its device, or runs Python all the time, as a host that only launches. Each step is taken in three ways: the plan is
there (`fixed`), the step makes it (`fresh`), or the side thread makes it during the step before (`prefetched`). The
figures are medians by the host's clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from plan_costs import fresh, write_rows

import longca
from longca import registry
from longca.manifests.devices import current_device
from longca.masks import Mask, sample
from longca_bench.measuring.environment import surroundings

WAYS = ("fixed", "fresh", "prefetched")


def asleep(seconds: float) -> None:
    """A host that waits for its device."""
    time.sleep(seconds)


def awake(seconds: float) -> None:
    """A host that runs Python for as long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def steps(masks: list[Mask], way: str, host: Callable[[], None]) -> list[float]:
    """Seconds of each step in a way."""
    about: dict[str, Any] = {"heads": (8, 2), "head_dim": 64, "dtype": torch.float32, "device": "cpu", "kernel": "sdpa"}
    handles = [longca.prefetch(mask, **about) for mask in (masks if way == "fixed" else masks[:1])]
    for handle in handles:
        handle.wait()
    taken = []
    for n, mask in enumerate(masks):
        start = time.perf_counter()
        if way == "prefetched" and n + 1 < len(masks):
            longca.prefetch(masks[n + 1], **about)
        longca.prefetch(mask, **about).wait()
        host()
        taken.append(time.perf_counter() - start)
    return taken[1:]


def measure(seqlen: int, asked: argparse.Namespace, how: Callable[[float], None]) -> dict[str, Any]:
    """The median step of each way."""
    drawn = [sample("causal_document", seqlen, lengths="auto", seed=seed) for seed in range(asked.steps + 1)]
    samples = {way: steps(list(map(fresh, drawn)), way, lambda: how(asked.device_ms / 1e3)) for way in WAYS}
    medians = {way: statistics.median(found) for way, found in samples.items()}
    over = {f"{way}_over_fixed": medians[way] / medians["fixed"] for way in WAYS[1:]}
    return {"seqlen": seqlen, "host": how.__name__, **medians, **over, "samples": samples}


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**13, 2**14])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device-ms", type=float, default=50.0)
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    asked = parser.parse_args()
    print(f"{'tokens':>8} {'host':8}" + "".join(f"{way + ', ms':>16}" for way in WAYS) + f"{'prefetched/fixed':>18}")
    rows = []
    for seqlen in asked.seqlens:
        for how in (asleep, awake):
            rows.append(row := measure(seqlen, asked, how))
            times = "".join(f"{row[way] * 1e3:>16.2f}" for way in WAYS)
            print(f"{seqlen:>8} {row['host']:8}{times}{row['prefetched_over_fixed']:>18.3f}", flush=True)
    if asked.out:
        write_rows(asked.out, {"environment": surroundings(registry(), current_device())}, rows)


if __name__ == "__main__":
    main()
