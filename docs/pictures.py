"""Pictures of strategies and placements: `python docs/pictures.py` writes docs/images/cp-*.png.

Each is a picture of `longca show-layout` with a digest of its contents. A test compares the digest with today's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from longca import masks, registry
from longca.manifests import Device, Problem
from longca_bench.reports.layout_arrangement import Arrangement, arrange, arrange_all
from longca_bench.reports.layout_picture import draw_layout, write_picture
from longca_bench.reports.layout_placements import Placements, draw_placements, placements_digest

IMAGES = Path(__file__).resolve().parent / "images"
PLACEMENTS = "cp-placements"
#: The mesh and the placement of each strategy's picture.
STRATEGIES: Mapping[str, tuple[dict[str, int], str]] = {
    "ulysses": ({"ulysses": 4}, "contiguous"),
    "ring_p2p": ({"ring": 4}, "zigzag"),
    "ring_all_gather": ({"ring": 4}, "zigzag"),
    "usp": ({"ring": 2, "ulysses": 2}, "zigzag"),
    "loongtrain": ({"outer": 2, "inner": 2, "heads": 2}, "zigzag"),
}
#: The masks of the picture of placements.
MASKS: Mapping[str, dict[str, Any]] = {
    "causal": {},
    "causal_document": {"documents": (70, 190, 52, 120, 80)},
    "shared_question": {"documents": (130, 150, 92, 140)},
}
#: Every picture's name.
PICTURES = (*(f"cp-{strategy.replace('_', '-')}" for strategy in STRATEGIES), PLACEMENTS)


@cache
def arrangement(name: str) -> Arrangement:
    """The contents of a strategy's picture."""
    strategy = name.removeprefix("cp-").replace("-", "_")
    return arrange(registry(), strategy, _problem("causal", 256), *STRATEGIES[strategy])


@cache
def placements() -> Placements:
    """The contents of the picture of placements."""
    every = {
        pattern: arrange_all(registry(), "ring_p2p", _problem(pattern, 512, **factors), {"ring": 4})
        for pattern, factors in MASKS.items()
    }
    return {
        pattern: {placement: None if isinstance(made, str) else made for placement, made in found.items()}
        for pattern, found in every.items()
    }


def digest(name: str) -> str:
    """A hash of the contents of a picture."""
    return placements_digest(placements()) if name == PLACEMENTS else arrangement(name).digest


def write(name: str, folder: Path = IMAGES) -> Path:
    """Draws a picture into a folder."""
    figure = draw_placements(placements()) if name == PLACEMENTS else draw_layout(arrangement(name))
    return write_picture(figure, folder / f"{name}.png", digest(name))


def _problem(pattern: str, seqlen: int, **factors: Any) -> Problem:
    return Problem(mask=masks.build(pattern, seqlen, **factors), heads_q=8, heads_kv=8, device=Device("cpu"))


if __name__ == "__main__":
    for each in PICTURES:
        print(write(each))
