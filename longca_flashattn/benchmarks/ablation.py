"""Splits fa4's time on a mask into three costs: partly visible tiles, rows of uneven length, and short rows.

    python longca_flashattn/benchmarks/ablation.py [--seqlens 8192 32768] [--seeds 0 1] [--heads 64:8]
        [--out results/h200/dense/ablation.json]

One run takes four times of each mask:

1. the mask itself
2. the 128 × 128 tiles that it touches, computed whole, so that no bound is checked
3. the same number of whole tiles dealt evenly to rows, so that no row is longer than another
4. the same number of tiles at the speed of full attention of the same length

The ratio of each time to the next is one cost:

- cut: checking bounds in partly visible tiles, and waiting for the slower tiles
- uneven: rows (in the backward, columns) that are longer than others, which leave the device partly idle at the end
- short: the beginning and end of each row, spread over fewer tiles than in full attention

The second and third time are of other masks. They profile the first time and are no results.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from layers import PATTERNS, milliseconds
from numpy.typing import NDArray

from longca import Problem, masks, registry
from longca.manifests import Direction
from longca.manifests.devices import current_device
from longca.masks import BlockSparseMask, Mask
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_flashattn.fa4 import FlashAttention4

TILE = 128
KERNEL = FlashAttention4()


def whole(tiles: NDArray[np.bool_]) -> BlockSparseMask:
    """A mask of whole tiles, from bool [rows, columns]."""
    bounds = (np.arange(size + 1) * TILE for size in tiles.shape)
    return BlockSparseMask(tiles[None], *bounds)


def dealt_evenly(tiles: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The same number of tiles with equally many in each row and in each column, up to one."""
    rows, columns = tiles.shape
    counts = np.diff(np.linspace(0, tiles.sum(), rows + 1).astype(int))
    even = np.zeros_like(tiles)
    for row, count in enumerate(counts):
        even[row, (row * columns // rows + np.arange(count)) % columns] = True
    return even


def times(mask: Mask, problem: Problem, x: Inputs) -> tuple[float, float]:
    """Milliseconds of a mask's forward and backward."""
    plan = KERNEL.plan(problem.with_mask(mask))
    out, lse = KERNEL.forward(x.q, x.k, x.v, plan)
    return (
        milliseconds(lambda: KERNEL.forward(x.q, x.k, x.v, plan)),
        milliseconds(lambda: KERNEL.backward(x.dout, x.q, x.k, x.v, out, lse, plan)),
    )


def measure(mask: Mask, problem: Problem, x: Inputs, full: tuple[float, float]) -> dict[str, Any]:
    """The times of one mask and their ratios, by direction."""
    tiles = mask.blocks(TILE, TILE).by_query.dense() > 0
    found = [times(each, problem, x) for each in (mask, whole(tiles), whole(dealt_evenly(tiles)))]
    row: dict[str, Any] = {"tiles": int(tiles.sum()), "tile_efficiency": mask.tile_efficiency()}
    for direction, (own, touched, even, of_full) in zip(
        ("forward", "backward"), zip(*found, full, strict=True), strict=True
    ):
        same = of_full * float(tiles.mean())
        row[direction] = {
            "milliseconds": {"mask": own, "whole": touched, "even": even, "full": same},
            "cut": own / touched,
            "uneven": touched / even,
            "short": even / same,
        }
    return row


def main() -> None:
    """Measures, prints a table, and writes the record if --out is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**13, 2**15])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--heads", default="64:8", help="query heads and KV heads")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    asked = parser.parse_args()
    heads_q, heads_kv = map(int, asked.heads.split(":"))
    rows: list[dict[str, Any]] = []
    for seqlen in asked.seqlens:
        problem = Problem(
            mask=masks.build("full", seqlen=seqlen),
            heads_q=heads_q,
            heads_kv=heads_kv,
            head_dim=128,
            dtype="bfloat16",
            device=current_device(),
            direction=Direction.BACKWARD,
        )
        x = draw_inputs(problem, seed=0)
        full = times(problem.concrete_mask, problem, x)
        for pattern in PATTERNS:
            for seed in asked.seeds:
                mask = masks.sample(pattern, seqlen, lengths="auto", seed=seed)
                about = {"pattern": pattern, "seqlen": seqlen, "seed": seed}
                rows.append({**about, **measure(mask, problem, x, full)})
                costs = (
                    f"{rows[-1][way][cost]:9.2f}"
                    for way in ("forward", "backward")
                    for cost in ("cut", "uneven", "short")
                )
                print(
                    f"{pattern:24}{seqlen:>8}{seed:>3}{rows[-1]['tile_efficiency']:6.2f}" + "".join(costs), flush=True
                )
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"environment": surroundings(registry(), current_device()), "heads": asked.heads, "rows": rows}
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
