"""Strategy manifests, and layouts: which queries, keys and heads meet on which rank in which step.

Validity under context parallelism is derived, not declared: a layout needs no devices, every step of it cuts the
mask, and the strategy is valid with a kernel where each cut that shows anything has an offer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from longca.manifests.kernel import ImportString, Manifest, Name

__all__ = ["Layout", "Ranges", "Step", "StrategyManifest"]

Ranges = tuple[tuple[int, int], ...]


class StrategyManifest(Manifest):
    """What a context-parallel strategy is.

    Attributes:
        axes: Names of the mesh axes it runs over, from the outermost.
        placements: Ways it can place token ranges on ranks, the default first.
        layout: Import string of a torch-free function `(problem, axis_sizes, placement) -> Layout`, where axis_sizes
            maps each axis to its number of ranks; it raises UnsupportedError where there is none.
    """

    axes: Annotated[tuple[Name, ...], Field(min_length=1)]
    placements: Annotated[tuple[Name, ...], Field(min_length=1)]
    layout: ImportString


@dataclass(frozen=True)
class Step:
    """One attention call of one rank.

    Attributes:
        q_ranges: (start, stop) of the queries, ascending and disjoint, in global positions.
        k_ranges: The same for the keys.
        heads_q: (start, stop) of the query heads.
        heads_kv: (start, stop) of the KV heads.
    """

    q_ranges: Ranges
    k_ranges: Ranges
    heads_q: tuple[int, int]
    heads_kv: tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Every rank's steps.

    Attributes:
        steps: Steps of each rank, in the order in which it takes them: [ranks][steps].
    """

    steps: tuple[tuple[Step, ...], ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.steps)
