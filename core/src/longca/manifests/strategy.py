"""Strategy manifests, and layouts: which queries, keys and heads meet on which rank in which step.

Validity under context parallelism is derived, not declared: a layout needs no devices, every step of it cuts the
mask, and the strategy is valid with a kernel where each cut that shows anything has an offer. A layout also says
which tokens each rank holds, and takes a tensor of all tokens apart and together again.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from longca.errors import RequestError
from longca.manifests.kernel import ImportString, Manifest, Name
from longca.manifests.steps import Ranges, Step, Steps

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Layout", "Ranges", "Step", "StrategyManifest"]


class StrategyManifest(Manifest):
    """What a context-parallel strategy is.

    Attributes:
        axes: Names of the mesh axes it runs over, from the outermost.
        placements: Ways it can place token ranges on ranks, the default first.
        layout: Import string of a torch-free function `(problem, axis_sizes, placement) -> Layout`, where axis_sizes
            maps each axis to its number of ranks; it raises UnsupportedError where there is none.
        memory: Import string of a torch-free function `(problem, axis_sizes, nccl) -> StrategyMemory`, where nccl says
            whether NCCL moves the tensors. None where it is not known.
        schedule: Import string of a torch-free function `(problem, layout, nccl) -> Schedule`, of the problem's
            direction alone: what one call computes and moves (`longca.manifests.schedule`). The forward before a
            backward kept what it could. None where it is not known: the strategy is valid, and its time not predicted.
    """

    axes: Annotated[tuple[Name, ...], Field(min_length=1)]
    placements: Annotated[tuple[Name, ...], Field(min_length=1)]
    layout: ImportString
    memory: ImportString | None = None
    schedule: ImportString | None = None


@dataclass(frozen=True)
class Layout:
    """Which tokens each rank holds, and which attention calls it makes.

    Ranks are numbered through the strategy's axes in the manifest's order, the last one fastest: over axes (ring,
    ulysses) rank r has index r // ulysses on the ring and r % ulysses in its group. Queries, keys and values of a
    token, and later its output, are held by one rank.

    Attributes:
        steps: Steps of each rank, in the order in which it takes them: [ranks][steps]. Steps that show nothing may be
            among them; they are skipped. Any sequence of tuples, or a `longca.manifests.steps.Steps`, which makes
            them when they are asked for.
        shards: (start, stop) of the tokens that each rank holds, ascending and disjoint, in global positions; together
            every token once: [ranks][ranges]. Shards need not be equally long, and may be empty.
        strategy: Whose it is; None of one that no registry made.
        axis_sizes: Ranks along each of the strategy's axes, in their order.

    Raises:
        RequestError: Not as many shards as ranks, or shards that do not hold every token once.
    """

    steps: Sequence[tuple[Step, ...]]
    shards: tuple[Ranges, ...]
    strategy: str | None = None
    axis_sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if len(self.shards) != len(self.steps):
            raise RequestError(f"a layout has {len(self.shards)} shards for {len(self.steps)} ranks; give each its own")
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(self.shards)), np.int64).reshape(-1, 2)
        rank = np.repeat(np.arange(len(self.shards)), [len(shard) for shard in self.shards])
        descends = flat[:, 0] >= flat[:, 1]
        descends[1:] |= (rank[1:] == rank[:-1]) & (flat[1:, 0] < flat[:-1, 1])
        if descends.any():
            bad = int(rank[descends.argmax()])
            raise RequestError(
                f"the shard of rank {bad} is {self.shards[bad]}; give ascending, disjoint (start, stop) pairs"
            )
        flat = flat[np.argsort(flat[:, 0], kind="stable")]
        ends = np.r_[0, flat[:-1, 1]][: len(flat)]
        if (wrong := flat[:, 0] != ends).any():
            start, end = int(flat[wrong.argmax(), 0]), int(ends[wrong.argmax()])
            what = "held by nobody" if start > end else "held twice"
            raise RequestError(f"token {min(start, end)} is {what}; shards hold every token once")

    def __hash__(self) -> int:
        # Equal layouts have equal first shards; a million steps need not be read to tell most others apart.
        return hash((self.world_size, self.shards[:1], self.strategy, self.axis_sizes))

    def made_by(self, strategy: str, axis_sizes: tuple[tuple[str, int], ...]) -> Layout:
        """The same layout as a strategy's."""
        made = copy(self)  # shards that were checked are not checked again
        object.__setattr__(made, "strategy", strategy)
        object.__setattr__(made, "axis_sizes", axis_sizes)
        return made

    @cached_property
    def table(self) -> Steps:
        """The steps as a table."""
        return Steps.of(self.steps)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.steps)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all shards together."""
        return sum(self.shard_size(rank) for rank in range(self.world_size))

    def shard_size(self, rank: int) -> int:
        """Tokens that a rank holds."""
        return sum(stop - start for start, stop in self.shards[rank])

    def positions(self, rank: int) -> NDArray[np.int64]:
        """The global position of each token that a rank holds, in the order in which it holds them: ascending."""
        return np.concatenate([np.arange(0), *(np.arange(start, stop) for start, stop in self.shards[rank])])

    def shard(self, x: Tensor, rank: int) -> Tensor:
        """A rank's rows of a tensor that has one for every token.

        Args:
            x: The global tensor: [num_tokens, ...].
            rank: Whose rows to take.

        Returns:
            A contiguous copy, differentiable: [shard_size(rank), ...].

        Raises:
            RequestError: x has another number of rows.
        """
        import torch

        if len(x) != self.num_tokens:
            raise RequestError(
                f"a tensor of {len(x)} rows was to be sharded; this layout is of {self.num_tokens} tokens"
            )
        return torch.cat([x[:0], *(x[start:stop] for start, stop in self.shards[rank])])

    def unshard(self, shards: Sequence[Tensor]) -> Tensor:
        """The global tensor of every rank's rows; it communicates nothing.

        Args:
            shards: The rows of each rank, as `shard` makes them: [ranks][shard_size(rank), ...].

        Returns:
            A contiguous copy, differentiable: [num_tokens, ...].

        Raises:
            RequestError: A shard is missing, or has another number of rows.
        """
        import torch

        sizes = [self.shard_size(rank) for rank in range(self.world_size)]
        if [len(rows) for rows in shards] != sizes:
            raise RequestError(f"shards of {[len(rows) for rows in shards]} rows were given; this layout's are {sizes}")
        pieces: dict[int, Tensor] = {}
        for rank, ranges in enumerate(self.shards):
            rows = torch.split(shards[rank], [stop - start for start, stop in ranges]) if ranges else ()
            pieces |= {start: piece for (start, _), piece in zip(ranges, rows, strict=True)}
        return torch.cat([shards[0][:0], *(pieces[start] for start in sorted(pieces))])
