"""The ranks of a function under its own context parallelism: the tokens of each, cut and gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from longca.errors import LongCAError, RequestError, UnknownNameError
from longca.manifests import Problem
from longca.masks import Mask
from longca.plugins import registry

__all__ = ["Placement", "Ranks", "Tokens", "tokens_of_ranks"]

#: A placement's name, or a function from the mask and the number of ranks to the positions of each rank's tokens.
Placement = str | Callable[[Mask, int], Sequence[Any]]
#: The tokens of each rank, in the order of its shard.
Tokens = tuple[NDArray[np.int64], ...]
#: Fewest ranks whose halves are groups of several ranks.
_HALVED = 4


@dataclass(frozen=True)
class Ranks:
    """Ranks that compute one call together.

    Attributes:
        group: The group that the function gets. This process is in it.
        every: A group of all ranks on CPUs, in which results are gathered.
        first: The rank in `every` from which results are gathered: that of the first rank of a group.
    """

    group: dist.ProcessGroup
    every: dist.ProcessGroup
    first: int = 0

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> Ranks:
        """The ranks of a group. None takes all processes. It is a collective call.

        Raises:
            RequestError: There is no process group.
        """
        if not dist.is_initialized():
            raise RequestError("a placement was given without a process group; start with torchrun, or leave it out")
        found = group or dist.group.WORLD
        assert found is not None
        return cls(found, _new_group(dist.get_process_group_ranks(found), "gloo"))

    @property
    def size(self) -> int:
        """Number of ranks that share a sequence."""
        return self.group.size()

    def __str__(self) -> str:
        every = dist.get_process_group_ranks(self.every)
        return f"ranks {', '.join(map(str, every[self.first : self.first + self.size]))}"

    def halves(self) -> tuple[Ranks, ...]:
        """Each half as a group of its own, if there are four ranks or more, and equally many in both halves.

        All ranks call the function in both, and the results of one half are gathered. It is a collective call.
        """
        if self.size < _HALVED or self.size % 2:
            return ()
        half, every = self.size // 2, dist.get_process_group_ranks(self.every)
        first = self.every.rank() // half * half
        group = _new_group(every[first : first + half])
        return Ranks(group, self.every), Ranks(group, self.every, half)

    def gather(self, own: Tensor, tokens: Tokens) -> Tensor:
        """The results of the ranks in the order of tokens, on every rank.

        Args:
            own: This rank's results: [tokens of the rank, heads, head dim].
            tokens: The tokens of each rank.
        """
        rows = []
        for rank, held in enumerate(tokens):
            is_own = self.every.rank() == self.first + rank
            there = own.cpu().contiguous() if is_own else own.new_empty((len(held), *own.shape[1:]), device="cpu")
            dist.broadcast(there, group=self.every, group_src=self.first + rank)
            rows.append(there)
        return torch.cat(rows)[torch.from_numpy(np.argsort(np.concatenate(tokens)))].to(own.device)


def _new_group(ranks: list[int], backend: str | None = None) -> dist.ProcessGroup:
    """A group that its members alone make."""
    found: dist.ProcessGroup = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
    return found


def tokens_of_ranks(placement: Placement, problem: Problem, size: int) -> Tokens:
    """The tokens that each rank holds, in the order of its shard.

    Args:
        placement: `contiguous` or `zigzag`, another placement of an installed strategy, or a function of the mask and
            the number of ranks.
        problem: The problem of all ranks together.
        size: Number of ranks.

    Raises:
        UnknownNameError: No installed strategy has this placement.
        RequestError: The function raises, or returns something other than every token once.
    """
    mask = problem.concrete_mask
    tokens = np.arange(mask.seqlen_q)
    if callable(placement):
        return _placed(placement, mask, size)
    if placement == "contiguous":
        return tuple(np.array_split(tokens, size))
    if placement == "zigzag":
        parts = np.array_split(tokens, 2 * size)
        return tuple(np.concatenate([parts[rank], parts[-1 - rank]]) for rank in range(size))
    known = {"contiguous", "zigzag"}
    for name, manifest in registry().strategies.items():
        known |= set(manifest.placements)
        if placement in manifest.placements and len(manifest.axes) == 1:
            layout = registry().layout(name, problem, {manifest.axes[0]: size}, placement)
            return tuple(np.concatenate([tokens[:0], *(tokens[a:b] for a, b in shard)]) for shard in layout.shards)
    raise UnknownNameError("placement", placement, known)


def _placed(placement: Callable[[Mask, int], Sequence[Any]], mask: Mask, size: int) -> Tokens:
    """The tokens of each rank by a placement function."""
    name = getattr(placement, "__name__", "the placement function")
    try:
        tokens = tuple(np.asarray(each, np.int64).reshape(-1) for each in placement(mask, size))
    except LongCAError:
        raise
    except Exception as error:
        raise RequestError(f"{name} raised {type(error).__name__}: {error}") from error
    if len(tokens) != size or not np.array_equal(np.sort(np.concatenate(tokens)), np.arange(mask.seqlen_q)):
        raise RequestError(
            f"{name} returned {sum(map(len, tokens))} tokens on {len(tokens)} ranks; return the positions of each "
            f"rank's tokens, {size} lists in which each of {mask.seqlen_q} tokens is once"
        )
    return tokens
