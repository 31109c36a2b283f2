"""Setup: the ranks of a model under context parallelism, and how they compute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from longca import plugins
from longca.integrations.transformers.layers import computing_dtype
from longca.kernels.ahead import Prefetch
from longca.kernels.prefetch import prefetch
from longca.manifests import Layout
from longca.masks import Mask
from longca.parallel.layouts import layout
from longca.parallel.meshes import groups_of, rank_in

__all__ = ["Setup", "Weighed"]

#: The mask of each kind of layer, with the number of these layers.
Weighed = Sequence[tuple[Mask, float]]


@dataclass(frozen=True, eq=False)
class Setup:
    """The ranks and the strategy of a model.

    Attributes:
        mesh: The device mesh.
        strategy: Name of the strategy, or `auto`.
        placement: Name of the placement, or `auto`.
        kernel: Name of the kernel or pair, or `auto`.
        heads: Query heads and KV heads.
        head_dim: Head dimension.
        model: The model, whose wrappers decide in which data type it computes.
        windows: The number of layers of each kind, by their sliding windows.
        averaged: Whether DDP or FSDP averages gradients over the mesh.
        require_documents: Whether a batch of one row must have boundaries of documents.
    """

    mesh: DeviceMesh
    strategy: str
    placement: str
    kernel: str
    heads: tuple[int, int]
    head_dim: int
    model: Any
    windows: dict[int | None, int]
    averaged: bool
    require_documents: bool

    def rank_in(self, placed: Layout) -> int:
        """This process's rank in a layout."""
        return rank_in(self.mesh, tuple(dict(placed.axis_sizes)))

    @property
    def groups(self) -> Sequence[dist.ProcessGroup]:
        """The process groups of the mesh. They are not kept, because they must not outlive `torch.distributed`."""
        return groups_of(self.mesh)

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that a layout depends on, apart from the masks and the data type."""
        where = plugins.registry(), self.mesh, self.groups
        return *where, self.strategy, self.placement, self.kernel, self.heads, self.head_dim, *self.windows.items()

    @property
    def dtype(self) -> torch.dtype:
        """The data type of q, k and v in a forward: that of the weights, of FSDP2's mixed precision, or of autocast."""
        policies = (part._get_fsdp_state()._mp_policy for part in self.model.modules() if isinstance(part, FSDPModule))
        cast = next((policy.param_dtype for policy in policies if policy.param_dtype is not None), self.model.dtype)
        with _autocast_of(self.model.forward):
            return computing_dtype(cast, self.mesh.device_type)

    def placed(self, weighed: Weighed, dtype: torch.dtype) -> tuple[Layout, ...]:
        """The layout of each mask. They have the same shards."""
        return layout(weighed, **self._asked(dtype))

    def placed_ahead(self, weighed: Weighed, dtype: torch.dtype) -> Prefetch:
        """Asks the side thread for the layouts, which `placed` then finds."""
        return prefetch(weighed, **self._asked(dtype))

    def _asked(self, dtype: torch.dtype) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "mesh": self.mesh,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "dtype": dtype,
            "kernel": self.kernel,
            "placement": self.placement,
        }

    def total(self, x: Tensor) -> Tensor:
        """The sum of a tensor over the ranks of the mesh, which holds no graph."""
        summed = x.detach().clone()
        for group in self.groups:
            dist.all_reduce(summed, group=group)
        return summed


def _autocast_of(forward: Any) -> AbstractContextManager[Any]:
    """The autocast in which a wrapped forward runs, as accelerate wraps it. Hooks of the model run outside it."""
    while forward is not None:
        held = (cell.cell_contents for cell in getattr(forward, "__closure__", None) or ())
        if (found := next((one for one in held if isinstance(one, torch.autocast)), None)) is not None:
            return found
        forward = getattr(forward, "__wrapped__", None)
    return nullcontext()
