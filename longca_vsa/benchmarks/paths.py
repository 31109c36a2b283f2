"""The cost of bsa's path for blocks of any sizes, apart from tiles that such blocks do not fill.

    python longca_vsa/benchmarks/paths.py [--seqlen 32768] [--out results/h200/sparse/tuning/paths.json]

Each kernel runs on three masks, half of whose blocks are kept. The first has blocks of 128 tokens. The second has one
bound moved by one token: the kernel takes the path for blocks of any sizes, though nearly all blocks fill their tiles.
The third has blocks of 128 tokens on average, cut anywhere. The second over the first is the cost of the path. The
third over the second is the cost of unfilled tiles. Rows are of 64:8 and of 64:64 heads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from tune import build

from longca.masks import BlockSparseMask, Mask
from longca_triton.tuning import OPERATIONS, Inputs, median_ms, problem_here
from longca_vsa.bsa.kernel import BlockSparseAttention

HEADS = ((64, 8), (64, 64))
BLOCK = 128


def one_bound_moved(mask: Mask) -> BlockSparseMask:
    """The same blocks with the end of the first moved by one token."""
    assert isinstance(mask, BlockSparseMask)
    moved = [np.r_[bounds[0], bounds[1] - 1, bounds[2:]] for bounds in (mask.q_bounds, mask.k_bounds)]
    return BlockSparseMask.from_bits(mask.bits, *moved)


def measure(heads: tuple[int, int], seqlen: int) -> list[dict[str, Any]]:
    """A row a kernel."""
    asked = argparse.Namespace(
        heads=heads, head_dim=128, dtype="bfloat16", kept=0.5, mask_heads="kv", block=BLOCK, variable=None
    )
    uniform = build(asked, seqlen)
    cut_anywhere = build(argparse.Namespace(**{**vars(asked), "variable": BLOCK}), seqlen)
    masks = {"uniform": uniform, "moved": one_bound_moved(uniform), "variable": cut_anywhere}
    inputs = {name: Inputs.make(BlockSparseAttention, problem_here(asked, mask)) for name, mask in masks.items()}
    rows = []
    for kernel in OPERATIONS:
        times = {}
        for name, each in inputs.items():
            run, _ = each.case(kernel, getattr(each.in_use, kernel))
            times[name] = median_ms(run) / masks[name].area  # milliseconds a visible pair
        path, tiles = times["moved"] / times["uniform"], times["variable"] / times["moved"]
        rows.append({"heads": list(heads), "kernel": kernel, "path": path, "tiles": tiles})
        print(f"{heads[0]}:{heads[1]:<4}{kernel:9}path {path:5.2f}   tiles {tiles:5.2f}", flush=True)
    return rows


def main() -> None:
    """Measures both kinds of heads, and writes the record where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=2**15)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args()
    rows = [row for heads in HEADS for row in measure(heads, asked.seqlen)]
    if asked.out:
        asked.out.write_text(json.dumps({"seqlen": asked.seqlen, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
