"""The cost of block-sparse masks before attention begins: each kernel's plan, its bytes, and choosing the blocks.

    python core/benchmarks/block_metadata.py [--kernels bsa flashinfer_fa3] [--heads 64:8 64:64] [--block 64]
        [--kept 0.5] [--seqlens 8192 131072] [--out results/h200/sparse/block_metadata.json]

Every kernel plans the same random mask, one a KV head, at 8 K to 128 K tokens, heads of 128 in bfloat16 (float32 on a
CPU); for the backward where it has one, which needs the most. A sample starts from a mask of which nothing but the
bits is known, and ends when the device is done. The first call, which may compile, is apart; the figure is the median
of five after it. Bytes are those of the plan's tensors, its scratch memory apart, and the allocator's peak while
planning.

`choose_blocks` chooses as many blocks by the scores of pooled queries and keys; its bytes are the mask's, on the host.

Rows that are unsupported, run out of memory (`oom`) or fail (`error`) are kept with that status.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from plan_costs import attempted, clocked, planned, repeated, training, write_rows

from longca import choose_blocks, masks, registry
from longca.manifests import Device, Direction, Problem
from longca.manifests.devices import current_device
from longca.masks import BlockSparseMask
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import draw_inputs

LENGTHS = (2**13, 2**14, 2**15, 2**16, 2**17)
CHOOSING = "choose_blocks"


def chosen(problem: Problem, block: int, kept: float) -> dict[str, Any]:
    """The cost of choosing as many blocks."""

    def costs() -> dict[str, Any]:
        inputs = draw_inputs(problem, seed=0)
        choose = partial(choose_blocks, inputs.q, inputs.k, block=block, kept=kept)
        first, mask, _ = clocked(choose, problem.device)
        return {"first_seconds": first, **repeated(choose, problem.device), "metadata_bytes": mask.nbytes}

    return attempted(costs, problem.device)


def measure(seqlen: int, heads: str, asked: argparse.Namespace, device: Device) -> list[dict[str, Any]]:
    """The rows of one length."""
    heads_kv = int(heads.partition(":")[2])
    factors = {"block": asked.block, "kept": asked.kept}
    mask = masks.build("uniform_block_sparse", seqlen, heads=heads_kv, **factors)
    assert isinstance(mask, BlockSparseMask)
    problem = training(mask, heads, device)
    forward = replace(problem, direction=Direction.FORWARD)  # for kernels without a backward
    about = {"seqlen": seqlen, "heads": heads, **factors, "mask_bytes": mask.nbytes}
    rows = [{"kernel": kernel, **about, **planned(kernel, problem, forward)} for kernel in asked.kernels]
    return [*rows, {"kernel": CHOOSING, **about, **chosen(problem, asked.block, asked.kept)}]


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    about = f"{row['kernel']:16}{row['heads']:>6}{row['seqlen']:>9}"
    if row["status"] != "ok":
        return f"{about}: {row['status']}: {row['message']}"
    times = f"{row['seconds'] * 1e3:9.3f} ms (first {row['first_seconds'] * 1e3:.0f})"
    peak = "" if row["peak_bytes"] is None else f", peak {row['peak_bytes'] / 2**20:.1f} MiB"
    return f"{about}: {times}, {row['metadata_bytes'] / 2**20:.3f} MiB{peak}"


def main() -> None:
    """Measures, prints a line a row, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=[name for name in registry().kernels if name != "naive"])
    parser.add_argument("--heads", nargs="+", default=["64:8"])
    parser.add_argument("--block", type=int, default=64)
    parser.add_argument("--kept", type=float, default=0.5)
    parser.add_argument("--seqlens", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    asked = parser.parse_args()
    device = current_device()
    about, rows = {"environment": surroundings(registry(), device)}, []
    for heads in asked.heads:
        for seqlen in asked.seqlens:
            for row in measure(seqlen, heads, asked, device):
                rows.append(row)
                print(line(row), flush=True)
            if asked.out:  # after each length, so that a run that is ended leaves what it has
                write_rows(asked.out, about, rows)


if __name__ == "__main__":
    main()
