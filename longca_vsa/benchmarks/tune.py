"""Times configurations of bsa's three kernels on the GPU at hand, each kernel by itself.

    python tune.py --out tuned.csv
    python tune.py --kernel forward --heads 16 16 --block 128 --kept 0.2
    python tune.py --kernel dkdv --variable 128 --seqlen 16384
    python tune.py --kernel dq --config 128,64,4,2,1 --config 128,64,8,2,0

`longca_triton.tuning` describes the method and the numbers.
"""

from __future__ import annotations

import argparse

import numpy as np

from longca import Problem, masks
from longca_triton.config import Config
from longca_triton.tuning import problem_here, tune, tuning_parser
from longca_vsa.bsa.configs import candidates
from longca_vsa.bsa.kernel import BlockSparseAttention

GRID = {
    "forward": [
        *[Config(128, 64, warps, stages, True) for warps in (4, 8) for stages in (2, 3, 4)],
        *[Config(128, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(128, 32, 4, stages, True) for stages in (3, 4)],
        *[Config(256, 64, 8, stages, True) for stages in (2, 3)],
        *[Config(64, 64, 4, stages, True) for stages in (2, 3, 4)],
        *[Config(64, 128, 4, stages, True) for stages in (2, 3)],
        *[Config(32, 64, warps, 3, True) for warps in (2, 4)],
        *[Config(16, 64, warps, 3, True) for warps in (1, 2, 4)],
        *[Config(128, 64, warps, stages) for warps in (4, 8) for stages in (2, 3)],
        *[Config(64, 64, 4, stages) for stages in (2, 3)],
    ],
    "dkdv": [
        *[Config(64, 64, warps, stages, True) for warps in (4, 8) for stages in (1, 2, 3)],
        *[Config(64, 128, 8, stages, True) for stages in (1, 2, 3)],
        *[Config(32, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(32, 64, 4, stages, True) for stages in (2, 3)],
        *[Config(128, 64, warps, 2, True) for warps in (4, 8)],
        *[Config(64, 32, 4, stages, True) for stages in (2, 3)],
        *[Config(128, 32, 4, stages, True) for stages in (1, 2)],
        *[Config(64, 16, warps, 2, True) for warps in (2, 4)],
        *[Config(64, 64, warps, 2) for warps in (4, 8)],
    ],
    "dq": [
        *[Config(128, 64, 8, stages, True) for stages in (1, 2, 3)],
        *[Config(128, 64, 4, stages, True) for stages in (1, 2)],
        *[Config(128, 32, warps, stages, True) for warps in (4, 8) for stages in (2, 3)],
        Config(128, 128, 8, 2, True),
        *[Config(64, 64, 4, stages, True) for stages in (2, 3, 4)],
        *[Config(64, 32, 4, stages, True) for stages in (3, 4)],
        *[Config(32, 64, warps, 2, True) for warps in (2, 4)],
        *[Config(16, 64, warps, 2, True) for warps in (1, 2, 4)],
        *[Config(128, 64, 8, stages) for stages in (2, 3)],
        Config(64, 64, 4, 2),
    ],
}


def build(arguments: argparse.Namespace, seqlen: int) -> masks.Mask:
    """The mask that the arguments ask for, over some tokens."""
    heads = {"shared": 1, "kv": arguments.heads[1], "query": arguments.heads[0]}[arguments.mask_heads]
    factors = {"kept": arguments.kept, "heads": heads, "seed": 0}
    if arguments.variable is None:
        return masks.build("uniform_block_sparse", seqlen=seqlen, block=arguments.block, **factors)
    cuts = np.random.default_rng(0).choice(np.arange(1, seqlen), max(1, seqlen // arguments.variable - 1), False)
    bounds = [0, *np.sort(cuts).tolist(), seqlen]
    return masks.build("variable_block_sparse", seqlen=seqlen, boundaries=bounds, **factors)


def all_candidates(problem: Problem) -> dict[str, list[Config]]:
    """The candidates of `configs.py` on the problem's device, and the grid."""
    found = problem.head_dim, problem.device.capability
    return {kernel: [*candidates(kernel, *found), *GRID[kernel]] for kernel in GRID}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The arguments. None stands for those of the command line."""
    parser = tuning_parser(__doc__)
    parser.add_argument("--block", type=int, default=64, help="tokens a block")
    parser.add_argument("--variable", type=int, metavar="MEAN", help="blocks of unequal sizes, of so many on average")
    parser.add_argument("--kept", type=float, default=0.5)
    parser.add_argument("--mask-heads", default="kv", choices=("shared", "kv", "query"))
    return parser.parse_args(arguments)


def main() -> None:
    """Reads the arguments, measures and prints."""
    arguments = parse()
    problem = problem_here(arguments, build(arguments, arguments.seqlen))
    name = f"blocks of {arguments.variable or arguments.block}"
    tune(BlockSparseAttention, all_candidates(problem), {name: problem}, arguments)


if __name__ == "__main__":
    main()
