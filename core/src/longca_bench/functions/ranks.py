"""The ranks of a function under its own context parallelism: the tokens of each, cut and gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from longca.errors import LongCAError, RequestError, UnknownNameError
from longca.manifests import Problem
from longca.masks import Mask
from longca.plain_text import plain_text, type_name
from longca.plugins import registry
from longca_bench.measuring.messages import from_json, to_json

__all__ = ["Placing", "Ranks", "Tokens", "placed_tokens", "tokens_of_ranks"]

_T = TypeVar("_T")

#: The tokens of each rank: from the mask and the number of ranks to integers [tokens of the rank] for each.
Placing = str | Callable[[Mask, int], Sequence[Any]]
#: The tokens of each rank, in the order of its shard.
Tokens = tuple[NDArray[np.int64], ...]
#: Fewest ranks whose halves are groups of several ranks.
_HALVED = 4


@dataclass(frozen=True)
class Ranks:
    """The ranks of a process group, one of which is this process.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        group: The group that the function gets.
        harness: A group on CPUs, in which results are gathered.
        half: The half of these ranks that has this process. None for fewer than four ranks.
        is_half: Whether these ranks are such a half.
    """

    rank: int
    size: int
    group: dist.ProcessGroup
    harness: dist.ProcessGroup
    half: Ranks | None = None
    is_half: bool = False

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
        every = dist.get_process_group_ranks(found)
        ranks = cls(found.rank(), found.size(), found, _new_group(every, "gloo"))
        if ranks.size < _HALVED:
            return ranks
        middle = ranks.size // 2
        own = every[:middle] if ranks.rank < middle else every[middle:]
        group = _new_group(own)
        half = cls(group.rank(), group.size(), group, _new_group(own, "gloo"), is_half=True)
        return replace(ranks, half=half)

    def __str__(self) -> str:
        every = dist.get_process_group_ranks(self.group)
        return f"ranks {', '.join(map(str, every))}"

    def joined(self, values: list[_T], kind: type[_T]) -> list[_T]:
        """The values of all ranks, on every rank."""
        return [value for rank in range(self.size) for value in self._said(values, list[kind], rank)]  # type: ignore[valid-type]

    def gather(self, parts: list[dict[str, Tensor]], tokens: Tokens) -> list[dict[str, Tensor]]:
        """The results of all ranks in the order of tokens, at the first rank. An empty list at the others.

        Args:
            parts: This rank's results for each sequence: [tokens of the rank, heads, head dim].
            tokens: The tokens of each rank.
        """
        back = torch.from_numpy(np.argsort(np.concatenate(tokens)))
        whole = [{name: self._gathered(x, tokens) for name, x in part.items()} for part in parts]
        if self.rank > 0:
            return []
        return [{name: x[back].to(parts[0][name].device) for name, x in part.items()} for part in whole]

    def _gathered(self, mine: Tensor, tokens: Tokens) -> Tensor:
        """The rows of all ranks, one rank after another, at the first rank. At the others nothing of use."""
        rows = [mine.new_empty((len(each), *mine.shape[1:]), device="cpu") for each in tokens]
        rows[self.rank] = mine.cpu().contiguous()
        if self.rank > 0:
            dist.send(rows[self.rank], group=self.harness, group_dst=0)
        else:
            for rank in range(1, self.size):
                dist.recv(rows[rank], group=self.harness, group_src=rank)
        return torch.cat(rows)

    def share(self, value: _T) -> _T:
        """The first rank's value, on every rank."""
        found: _T = self._said(value, type(value), 0)
        return found

    def _said(self, value: Any, kind: Any, rank: int) -> Any:
        """A rank's value, on every rank, by way of JSON."""
        data = to_json(value)
        size = torch.tensor([len(data)])
        dist.broadcast(size, group=self.harness, group_src=rank)
        there = torch.frombuffer(bytearray(data if self.rank == rank else int(size)), dtype=torch.uint8)
        dist.broadcast(there, group=self.harness, group_src=rank)
        return from_json(bytes(there.numpy()), kind)


def _new_group(ranks: list[int], backend: str | None = None) -> dist.ProcessGroup:
    """A group that its members alone make."""
    found: dist.ProcessGroup = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
    return found


def tokens_of_ranks(placing: Placing, problem: Problem, size: int) -> Tokens:
    """The tokens that each rank holds, in the order of its shard.

    Args:
        placing: `contiguous` or `zigzag`, another placement of an installed strategy, or a function of the mask and the
            number of ranks.
        problem: The problem of all ranks together.
        size: Number of ranks.

    Raises:
        UnknownNameError: No installed strategy has this placement.
        RequestError: The function returns something other than every token once.
    """
    mask = problem.concrete_mask
    tokens = np.arange(mask.seqlen_q)
    if callable(placing):
        return placed_tokens(placing, mask, size)
    if placing == "contiguous":
        return tuple(np.array_split(tokens, size))
    if placing == "zigzag":
        parts = np.array_split(tokens, 2 * size)
        return tuple(np.concatenate([parts[rank], parts[-1 - rank]]) for rank in range(size))
    known = {"contiguous", "zigzag"}
    for name, manifest in registry().strategies.items():
        known |= set(manifest.placements)
        if placing in manifest.placements and len(manifest.axes) == 1:
            layout = registry().layout(name, problem, {manifest.axes[0]: size}, placing)
            return tuple(np.concatenate([tokens[:0], *(tokens[a:b] for a, b in shard)]) for shard in layout.shards)
    raise UnknownNameError("placement", placing, known)


def placed_tokens(placing: Callable[[Mask, int], Sequence[Any]], mask: Mask, size: int) -> Tokens:
    """The tokens of each rank by a placement function.

    Args:
        placing: The function.
        mask: The mask of all tokens.
        size: Number of ranks.

    Raises:
        RequestError: It raises, or returns something other than every token once.
    """
    name, seqlen = getattr(placing, "__name__", "the placement function"), mask.seqlen_q
    try:
        found: Any = placing(mask, size)
    except LongCAError:
        raise
    except Exception as error:
        raise RequestError(f"{name} raised {type_name(error)}: {plain_text(error, 500)}".rstrip(": ")) from error
    try:
        tokens = tuple(np.asarray(each, np.int64).reshape(-1) for each in found)
    except (TypeError, ValueError):
        tokens = ()
    if len(tokens) != size or not np.array_equal(np.sort(np.concatenate(tokens)), np.arange(seqlen)):
        held = f"{sum(map(len, tokens))} tokens on {len(tokens)} ranks" if tokens else f"a {type(found).__name__}"
        raise RequestError(
            f"{name} returned {held}; return the positions of each rank's tokens, {size} lists in which each of "
            f"{seqlen} tokens is once"
        )
    return tokens
