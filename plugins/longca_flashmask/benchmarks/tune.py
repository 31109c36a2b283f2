"""Times configurations of the three kernels on the GPU at hand, each kernel by itself.

    python tune.py --out tuned.csv
    python tune.py --kernel dkdv --head-dim 64 --mask causal --seqlen 16384

`longca_triton.tuning` describes the method and the numbers.
"""

from __future__ import annotations

from typing import Any

from longca import masks
from longca_flashmask.flashmask import FlashMask
from longca_triton.config import Config
from longca_triton.tuning import problem_here, tune, tuning_parser

CANDIDATES = {
    "forward": [
        *[Config(128, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(128, 64, 8, stages, True) for stages in (2, 3, 4)],
        *[Config(128, 64, 4, stages, True) for stages in (2, 3)],
        *[Config(128, 32, 4, stages, True) for stages in (2, 3, 4)],
        *[Config(256, 64, 8, stages, True) for stages in (2, 3)],
        Config(64, 128, 4, 2, True),
        *[Config(64, 64, 4, stages, True) for stages in (2, 3)],
        Config(128, 128, 8, 2),
        Config(128, 64, 4, 2),
    ],
    "dkdv": [
        *[Config(64, 128, 8, stages, True) for stages in (1, 2, 3)],
        *[Config(64, 64, 4, stages, True) for stages in (1, 2, 3)],
        *[Config(32, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(32, 64, 4, stages, True) for stages in (2, 3)],
        Config(128, 64, 8, 2, True),
        Config(64, 64, 8, 2, True),
        Config(128, 128, 8, 2, True),
        Config(64, 128, 8, 2),
        Config(64, 64, 4, 2),
    ],
    "dq": [
        *[Config(128, 64, 8, stages, True) for stages in (2, 3)],
        Config(128, 128, 8, 2, True),
        *[Config(128, 32, 8, stages, True) for stages in (3, 4)],
        Config(128, 32, 4, 2, True),
        *[Config(64, 64, 4, stages, True) for stages in (2, 3)],
        *[Config(64, 32, 4, stages, True) for stages in (3, 4)],
        Config(64, 128, 4, 2, True),
        Config(256, 32, 8, 2, True),
        Config(128, 64, 8, 2),
        Config(64, 64, 4, 2),
    ],
}
MASKS = ("full", "causal", "causal_document", "shared_question", "global_sliding_window")


def build(name: str, seqlen: int) -> masks.Mask:
    """A mask by name, with documents of 3000 tokens and windows of 1024. Short masks have smaller ones."""
    documents = [min(3000, seqlen - start) for start in range(0, seqlen, 3000)]
    factors: dict[str, dict[str, Any]] = {
        "causal_document": {"documents": documents},
        "shared_question": {"documents": documents},
        "global_sliding_window": {"window": min(1024, seqlen // 4), "global_tokens": min(1024, seqlen // 4)},
    }
    return masks.build(name, seqlen=seqlen, **factors.get(name, {}))


def main() -> None:
    """Reads the arguments, measures and prints."""
    parser = tuning_parser(__doc__)
    parser.add_argument("--mask", action="append", choices=MASKS)
    arguments = parser.parse_args()
    problems = {name: problem_here(arguments, build(name, arguments.seqlen)) for name in arguments.mask or MASKS}
    tune(FlashMask, CANDIDATES, problems, arguments)


if __name__ == "__main__":
    main()
