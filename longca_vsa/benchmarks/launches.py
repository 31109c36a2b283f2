"""Times bsa's kernel of dk and dv by how many query heads of a group a launch takes, on the GPU at hand.

    python launches.py [--heads 64 8] [--seqlen 32768] [--out launches.json]

Few heads a launch keep their queries in the L2 cache. Many heads save passes over the sums. Masks are those of
`tune.py`: blocks of 64 and of 128 tokens, and variable ones of 128 on average, half of them kept.
"""

from __future__ import annotations

import argparse
import json
from typing import Any
from unittest.mock import patch

from tune import build

from longca_triton.tuning import Inputs, median_ms, problem_here, tuning_parser
from longca_vsa.bsa import launches
from longca_vsa.bsa.kernel import BlockSparseAttention

MASKS: tuple[dict[str, int | None], ...] = (
    {"block": 64, "variable": None},
    {"block": 128, "variable": None},
    {"block": None, "variable": 128},
)


def measure(arguments: argparse.Namespace, blocks: dict[str, int | None]) -> list[dict[str, Any]]:
    """Rows of one mask, the fewest heads a launch first."""
    asked = argparse.Namespace(**vars(arguments), **blocks, kept=0.5, mask_heads="kv")
    problem = problem_here(asked, build(asked, asked.seqlen))
    inputs = Inputs.make(BlockSparseAttention, problem)
    group = asked.heads[0] // asked.heads[1]
    rows = []
    for heads in (count for count in range(1, group + 1) if group % count == 0):
        with patch.object(launches, "heads_a_launch", lambda *_, heads=heads: heads):
            run, _ = inputs.case("dkdv", inputs.in_use.dkdv)
            time = round(median_ms(run), 2)
        rows.append({"heads": list(asked.heads), **blocks, "heads_a_launch": heads, "dkdv_ms": time})
        print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    """Measures all masks, and writes the record where asked to."""
    parser = tuning_parser(__doc__)
    arguments = parser.parse_args()
    rows = [row for blocks in MASKS for row in measure(arguments, blocks)]
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"seqlen": arguments.seqlen, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
