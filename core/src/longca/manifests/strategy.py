"""Strategy manifests, and layouts: the queries, keys and heads of every step on every rank.

Validity under context parallelism is derived, not declared. A layout needs no devices. Every step of it cuts the mask,
and the strategy is valid with a kernel if each non-empty cut has an offer. A layout also assigns tokens to ranks. It
takes a tensor of all tokens apart and puts it together again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from longca.errors import RequestError
from longca.manifests.kernel import ImportString, Manifest, Name
from longca.manifests.steps import Ranges, Step, Steps
from longca.masks import Mask

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Layout", "Ranges", "SharedPlacement", "Step", "StrategyManifest", "StrategyMemory", "Transport"]


class Transport(StrEnum):
    """The way in which a strategy moves tensors between ranks.

    Attributes:
        AUTO: The strategy chooses for each axis of its mesh, and logs the reason.
        COLLECTIVES: Calls of torch.distributed.
        COPY_ENGINE: Writes into the memory of peers. On GPUs, the copy engines make them.
    """

    AUTO = "auto"
    COLLECTIVES = "collectives"
    COPY_ENGINE = "copy_engine"


@dataclass(frozen=True)
class StrategyMemory:
    """Bytes on the rank that needs most, without the log-sum-exps and without the kernel's own workspace.

    The function that a `StrategyManifest` names as `memory` returns one.

    Attributes:
        forward: Bytes at the forward's peak beyond q, k and v. The output is counted.
        backward: Bytes at the backward's peak beyond q, k, v, out, dout and `kept`. dq, dk and dv are counted.
        kept: Bytes that a forward keeps for the backward, beyond q, k, v and out.
    """

    forward: int
    backward: int
    kept: int = 0


class SharedPlacement(str):
    """The name of a placement that is balanced for several masks at once.

    A strategy's layout function gets it as its `placement`, once for each of the masks. It places tokens by the
    weighted sum of the masks' visible pairs, so that the shards of all layouts are equal.

    Args:
        name: The placement's name.
        weighed: The masks of one length, each with its weight.
    """

    weighed: tuple[tuple[Mask, float], ...]

    def __new__(cls, name: str, weighed: Sequence[tuple[Mask, float]]) -> SharedPlacement:
        """The name as a string."""
        made = super().__new__(cls, name)
        made.weighed = tuple(weighed)
        return made


class StrategyManifest(Manifest):
    """The description of a context-parallel strategy.

    Attributes:
        axes: Names of the mesh axes that it runs over, from the outermost.
        placements: Names of its ways to place token ranges on ranks, the default first.
        layout: Import string of a torch-free function `(problem, axis_sizes, placement) -> Layout`. `axis_sizes` maps
            each axis to its number of ranks. The function raises UnsupportedError if there is no layout.
        memory: Import string of a torch-free function `(problem, axis_sizes, nccl) -> StrategyMemory`. `nccl` says
            whether NCCL moves the tensors. None if the memory is unknown.
        schedule: Import string of a torch-free function `(problem, layout, nccl) -> Schedule`: the computation and the
            moves of one call in the problem's direction alone (`longca.manifests.schedule`). A backward assumes that
            its forward kept every tensor it could. None if it is unknown: the strategy is valid without a prediction.
        transports: Its ways to move tensors, without `auto`. If there are several, its class takes `transport=` beside
            the mesh, and the functions `memory` and `schedule` take a transport as their fourth argument. Each of them
            may get `auto`, which is the strategy's own choice on GPUs of one host.
    """

    axes: Annotated[tuple[Name, ...], Field(min_length=1)]
    placements: Annotated[tuple[Name, ...], Field(min_length=1)]
    layout: ImportString
    memory: ImportString | None = None
    schedule: ImportString | None = None
    transports: Annotated[tuple[Transport, ...], Field(min_length=1)] = (Transport.COLLECTIVES,)

    @field_validator("transports")
    @classmethod
    def _lists_ways(cls, transports: tuple[Transport, ...]) -> tuple[Transport, ...]:
        if Transport.AUTO in transports or len(set(transports)) != len(transports):
            raise ValueError("list each way to move tensors once; auto is a choice among them")
        return transports


@dataclass(frozen=True)
class Layout:
    """The tokens that each rank holds, and the attention calls that it makes.

    Ranks count through the strategy's axes in the manifest's order, the last one fastest. Over axes (ring, ulysses),
    rank r has index r // ulysses on the ring and r % ulysses in its group. One rank holds the query, the key and the
    value of a token, and later its output.

    Attributes:
        steps: Steps of each rank, in their order: [ranks][steps]. Empty steps may be among them, and are skipped. Any
            sequence of tuples, or a `longca.manifests.steps.Steps`, which makes them on demand.
        shards: (start, stop) of the tokens of each rank, ascending and disjoint, in global positions: [ranks][ranges].
            Every token is in one shard. Shards may differ in length, and may be empty.
        strategy: Name of the strategy. None if no registry made the layout.
        axis_sizes: Ranks along each of the strategy's axes, in their order.
        placement: Name of the placement. It does not count when layouts are compared.

    Raises:
        RequestError: The numbers of shards and ranks differ, or a token is in no shard or in several.
    """

    steps: Sequence[tuple[Step, ...]]
    shards: tuple[Ranges, ...]
    strategy: str | None = None
    axis_sizes: tuple[tuple[str, int], ...] = ()
    placement: str | None = field(default=None, compare=False)

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
        # Equal layouts have equal first shards. These distinguish most others without reading a million steps.
        return hash((self.world_size, self.shards[:1], self.strategy, self.axis_sizes))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.axis_sizes) or f"{self.world_size} ranks"
        maker = self.strategy or "made by hand"
        return f"<Layout: {maker} on {sizes}, {self.num_tokens} tokens, {self.placement or 'unnamed placement'}>"

    def made_by(self, strategy: str, axis_sizes: tuple[tuple[str, int], ...], placement: str | None = None) -> Layout:
        """The same layout with the names of its strategy, axes and placement."""
        made = copy(self)  # its shards were checked
        made.__dict__.pop("words", None)
        for name, value in (("strategy", strategy), ("axis_sizes", axis_sizes), ("placement", placement)):
            object.__setattr__(made, name, value)
        return made

    @cached_property
    def table(self) -> Steps:
        """The steps as a table."""
        return Steps.of(self.steps)

    @cached_property
    def words(self) -> str:
        """Words that are the same for equal layouts, in every process: the strategy, the ranks and a digest."""
        steps = self.table
        digest = hashlib.blake2b(repr((self.axis_sizes, self.shards, steps.parts, steps.heads)).encode(), digest_size=8)
        digest.update(steps.table.tobytes() + steps.bounds.tobytes())
        return f"{self.strategy or 'one made by hand'} on {self.world_size} ranks ({digest.hexdigest()})"

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
        """The global positions of a rank's tokens, ascending."""
        return np.concatenate([np.arange(0), *(np.arange(start, stop) for start, stop in self.shards[rank])])

    def shard(self, x: Tensor, rank: int) -> Tensor:
        """A rank's rows of a tensor with a row for every token.

        Args:
            x: The global tensor: [num_tokens, ...].
            rank: The rank.

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
        """The global tensor, put together from every rank's rows. It communicates nothing.

        Args:
            shards: The rows of each rank, as returned by `shard`: [ranks][shard_size(rank), ...].

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
