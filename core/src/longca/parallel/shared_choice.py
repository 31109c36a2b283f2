"""SharedChoice: the part of one rank in a choice of blocks among ranks that hold some tokens each.

Ranks exchange the means of their blocks, and later the bits of their heads. Both are small beside keys and values: at
64 K tokens in blocks of 64, the means of 8 KV heads of 128 are 4 MB. One rank chooses the blocks of a head and sends
their bits to all ranks. So ranks cannot disagree, even on devices that round in different ways.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from longca.errors import RequestError
from longca.manifests import Layout
from longca.masks.bounds import cut_bounds
from longca.parallel.meshes import axis_sizes, mesh_dims, rank_in

__all__ = ["SharedChoice"]

_Ints = NDArray[np.int64]

# Newer releases of PyTorch use the first name.
_all_gather: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class SharedChoice:
    """A rank's part in a choice of blocks.

    Args:
        layout: The layout, which assigns tokens to ranks.
        mesh: The device mesh of its strategy.

    Raises:
        RequestError: One of the two is missing. The mesh has other axes or sizes than the layout, or this process is
            not in it.
    """

    def __init__(self, layout: Layout | None, mesh: DeviceMesh | None) -> None:
        if not isinstance(layout, Layout) or not isinstance(mesh, DeviceMesh):
            raise RequestError(
                f"layout is a {type(layout).__name__} and mesh a {type(mesh).__name__}; to choose blocks of tokens "
                "that ranks share, give the layout of longca.layout and the device mesh of its strategy"
            )
        axes = tuple(dict(layout.axis_sizes)) or tuple(mesh.mesh_dim_names or ("ranks",))
        self._layout, self._mesh, self._dims = layout, mesh, mesh_dims(mesh, axes)
        if (ranks := prod(axis_sizes(mesh, axes).values())) != layout.world_size:
            raise RequestError(
                f"the layout is of {layout.world_size} ranks, and the mesh has {ranks}; give the layout of this mesh"
            )
        self._rank = rank_in(mesh, axes)

    @property
    def num_tokens(self) -> int:
        """Tokens of all ranks."""
        return self._layout.num_tokens

    def check(self, q: Tensor, k: Tensor) -> None:
        """Checks that tensors have the tokens of this rank's shard."""
        held = self._layout.shard_size(self._rank)
        if not len(q) == len(k) == held:
            raise RequestError(
                f"q has {len(q)} tokens and k {len(k)}, but rank {self._rank} of {self._layout.world_size} holds "
                f"{held} of {self.num_tokens} here; give each rank its shard of this layout"
            )

    def means(self, x: Tensor, bounds: _Ints, mean: Callable[[Tensor, _Ints], Tensor]) -> Tensor:
        """The mean of every block of all ranks' tokens: float32 [H, blocks, D]. A mean of a whole block stays as it is.

        Args:
            x: This rank's tokens: [T, H, D].
            bounds: Bounds of the blocks of all tokens: [blocks + 1].
            mean: The means of consecutive blocks of some tokens, given these and bounds: [H, blocks, D].
        """
        cuts = [cut_bounds(bounds, np.array(shard, np.int64).reshape(-1, 2)) for shard in self._layout.shards]
        mine = mean(x, cuts[self._rank][0])
        most = max(len(blocks) for _, blocks in cuts)
        padded = mine.new_zeros((most, mine.shape[0], mine.shape[2]))
        padded[: mine.shape[1]] = mine.transpose(0, 1)
        total = padded.new_zeros((len(bounds) - 1, *padded.shape[1:]))
        sizes = np.diff(bounds)
        # Rank after rank, so that the parts of a block are added in the same order every time.
        for part, (inner, blocks) in zip(self._from_all(padded), cuts, strict=True):
            share = torch.from_numpy(np.diff(inner) / sizes[blocks]).to(part)
            total.index_add_(0, torch.from_numpy(blocks).to(x.device), part[: len(blocks)] * share[:, None, None])
        return total.transpose(0, 1)

    def heads(self, count: int) -> range:
        """The heads that this rank chooses for, of `count`."""
        each = -(-count // self._layout.world_size)
        return range(min(count, each * self._rank), min(count, each * (self._rank + 1)))

    def bits(self, mine: Tensor, heads: int) -> Tensor:
        """The bits of all heads, [heads, ...], given those of this rank's heads."""
        padded = mine.new_zeros((-(-heads // self._layout.world_size), *mine.shape[1:]))
        padded[: len(mine)] = mine
        return self._from_all(padded).flatten(0, 1)[:heads]

    def _from_all(self, mine: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape: [ranks, ...]."""
        gathered = mine[None]
        for dim in reversed(self._dims):
            everyones = gathered.new_empty((self._mesh.size(dim) * len(gathered), *mine.shape))
            _all_gather(everyones, gathered.contiguous(), group=self._mesh.get_group(dim))
            gathered = everyones
        return gathered
