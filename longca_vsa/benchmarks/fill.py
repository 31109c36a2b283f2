"""How many of the pairs that bsa's kernels compute are visible: the fill of their tiles, for the masks of a suite.

    python longca_vsa/benchmarks/fill.py results/h200/sparse/half.toml --out results/sparse/fill.json

The script needs no GPU. It makes the plans on the CPU with the configurations of a device of capability 9.0
(--capability), and counts their pairs. A program has a tile of BLOCK_M rows (BLOCK_N keys for dk and dv). Each of its
steps takes as many columns, even if no block of the mask fills them. A row of the forward and of dq is a query under
one head. If the heads of a group share their mask, a block of few queries fills a tile too.

Kernels that take any mask have tiles at multiples of their size instead (`aligned`).

The backward's fill weighs its two kernels by their operations on a pair and head dimension: 8 for dk and dv, 6 for dq,
or 2 for dq if the launch of dk and dv stores gradients of scores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca import Device, Problem, registry
from longca.manifests import Direction
from longca.masks import BlockSparseMask
from longca_bench.measuring.environment import surroundings
from longca_bench.suites.case import Case
from longca_bench.suites.cases import Selection, expand
from longca_bench.suites.suite import load_suite
from longca_vsa.bsa.configs import choose
from longca_vsa.bsa.plan import BSAPlan, make_plan

if TYPE_CHECKING:
    from longca_triton.config import Config

CPU = Device("cpu")
BACKWARD = ("dkdv", "dq")
#: Queries and keys of tiles at multiples of their size.
ALIGNED = ((128, 128), (128, 64), (64, 64), (64, 32), (64, 16))
ABOUT = ("pattern", "seqlen", "seed", "heads_q", "heads_kv", "head_dim")


def masks_of(suite: str) -> list[Case]:
    """The cases of a suite that bsa takes, one of each mask and shape."""
    cases = expand(load_suite(suite), registry().kernels, Selection(kernels=("bsa",), directions=(Direction.BACKWARD,)))
    return [case for case in cases if isinstance(case.mask, BlockSparseMask)]


def plan_for(problem: Problem, capability: tuple[int, int]) -> BSAPlan:
    """The plan that a device of some capability would have, on the CPU."""
    return make_plan(problem, choose(problem, capability))


def computed(plan: BSAPlan, kernel: str) -> int:
    """Pairs that all programs of `forward`, `dkdv` or `dq` compute, visible or not."""
    if plan.ranges and kernel != "forward":
        return sum(computed(each.plan, kernel) for each in plan.ranges)
    config: Config = getattr(plan.configs, kernel)
    step = config.block_m if kernel == "dkdv" else config.block_n
    stored = plan.scores if kernel == "dq" else None
    steps = stored.steps if stored else plan.lists(kernel).steps[step]  # [mask heads, blocks]
    blocks = plan.tiles[kernel].table[:, 3].long()
    # dk and dv walk a list once for each query head; the others' rows are a group's heads where these are packed.
    walks = plan.heads_a_mask if kernel == "dkdv" else plan.heads_a_mask // plan.packed
    return int(steps[:, blocks].sum()) * walks * config.block_m * config.block_n


def weights_of(plan: BSAPlan) -> dict[str, int]:
    """Operations on a pair and head dimension, by kernel of the backward."""
    return {"dkdv": 8, "dq": 2 if plan.ranges else 6}


def row_of(case: Case, capability: tuple[int, int]) -> dict[str, Any]:
    """The row of a mask."""
    problem = replace(case.problem(CPU), direction=Direction.BACKWARD)
    plan = plan_for(problem, capability)
    cells = {kernel: computed(plan, kernel) for kernel in ("forward", *BACKWARD)}
    tiles = {kernel: [getattr(plan.configs, kernel).block_m, getattr(plan.configs, kernel).block_n] for kernel in cells}
    weights = weights_of(plan)
    weighed = sum(weight * cells[kernel] for kernel, weight in weights.items())
    return {
        **{name: getattr(case, name) for name in ABOUT},
        "factors": dict(case.factors),
        "mask_digest": case.mask.digest,
        "visible": problem.area,
        "computed": cells,
        "tiles": tiles,
        "fill": {kernel: problem.area / count for kernel, count in cells.items()}
        | {"backward": sum(weights.values()) * problem.area / weighed},
        "aligned": {f"{rows}x{columns}": case.mask.tile_efficiency(rows, columns) for rows, columns in ALIGNED},
    }


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    factors = ", ".join(f"{name} {value}" for name, value in row["factors"].items())
    fills = ", ".join(f"{name} {value:.3f}" for name, value in row["fill"].items())
    return f"{row['pattern']} ({factors}), {row['heads_q']}:{row['heads_kv']} heads: {fills}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Counts, prints a line a mask, and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="a suite's name, or its TOML file")
    parser.add_argument("--capability", type=int, nargs=2, default=(9, 0), metavar=("MAJOR", "MINOR"))
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    asked = parser.parse_args(arguments)
    capability = (asked.capability[0], asked.capability[1])
    rows = []
    for case in masks_of(asked.suite):
        rows.append(row_of(case, capability))
        print(line(rows[-1]), flush=True)
    if asked.out:
        about = {"environment": surroundings(registry(), CPU), "capability": capability}
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
