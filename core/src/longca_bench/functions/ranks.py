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
from longca.masks import Mask

__all__ = ["Placement", "Ranks", "Tokens", "tokens_of_ranks"]

#: `contiguous`, `zigzag`, or a function from the mask and the number of ranks to the positions of each rank's tokens.
Placement = str | Callable[[Mask, int], Sequence[Any]]
#: The tokens of each rank, in the order of its shard.
Tokens = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Ranks:
    """Ranks that compute one call together.

    The function gets `group`, in which this process is. Results are gathered in `every`, a group of all ranks on CPUs,
    from the ranks of a group that begins with the rank `first`.
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

    def second_half(self) -> Ranks | None:
        """The second half as a group of its own, or None without two ranks in each half. It is a collective call.

        Both halves call the function. The first half shows nothing: its ranks have the same numbers in the world.
        """
        if self.size < 4 or self.size % 2:
            return None
        half, every = self.size // 2, dist.get_process_group_ranks(self.every)
        first = self.every.rank() // half * half
        return Ranks(_new_group(every[first : first + half]), self.every, half)

    def gather(self, own: Tensor, tokens: Tokens) -> Tensor:
        """The results [tokens of the rank, heads, head dim] of the ranks in the order of tokens, on every rank."""
        rows = []
        for rank, held in enumerate(tokens, start=self.first):
            is_own = self.every.rank() == rank
            there = own.cpu().contiguous() if is_own else own.new_empty((len(held), *own.shape[1:]), device="cpu")
            dist.broadcast(there, group=self.every, group_src=rank)
            rows.append(there)
        return torch.cat(rows)[torch.from_numpy(np.argsort(np.concatenate(tokens)))].to(own.device)


def _new_group(ranks: list[int], backend: str | None = None) -> dist.ProcessGroup:
    """A group that its members alone make."""
    found: dist.ProcessGroup = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
    return found


def tokens_of_ranks(placement: Placement, mask: Mask, size: int) -> Tokens:
    """The tokens that each rank holds.

    Raises:
        UnknownNameError: There is no such placement.
        RequestError: The function raises, or returns something other than every token once.
    """
    tokens = np.arange(mask.seqlen_q)
    if callable(placement):
        return _placed(placement, mask, size)
    if placement == "contiguous":
        return tuple(np.array_split(tokens, size))
    if placement == "zigzag":
        parts = np.array_split(tokens, 2 * size)
        return tuple(np.concatenate([parts[rank], parts[-1 - rank]]) for rank in range(size))
    raise UnknownNameError("placement", placement, ("contiguous", "zigzag"))


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
