"""The inner attention of a layer, and the masks that it gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.protocols.module import Module

from longca.errors import RequestError, UnsupportedError
from longca.kernels.attention import attention, check_kernel
from longca.manifests import Layout
from longca.masks import Mask

__all__ = ["BatchMasks", "LongCAAttention", "Window"]

#: Tokens that a query sees to the left and to the right of itself. −1 means no bound.
Window = tuple[int, int]


@dataclass(frozen=True)
class BatchMasks:
    """The masks of a batch, whose rows are packed one after another.

    Attributes:
        masks: The mask of the layers with each window.
        layouts: The layout of each mask under context parallelism. All of them have the same shards.
    """

    masks: dict[Window, Mask]
    layouts: dict[Window, Layout]


class LongCAAttention(Module):  # type: ignore[misc]  # torchtitan is not typed for others
    """An inner attention of torchtitan. Its masks come from `prepare_batch`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        """The settings of a layer.

        Attributes:
            window_size: As in torchtitan's `VarlenAttention`. (−1, 0) is causal, and (w − 1, 0) a window of w tokens.
            kernel: As in `longca.attention`.
            strategy: The context-parallel strategy, as in `longca.attention`.
            placement: The placement of tokens on ranks, as in `longca.layout`.
        """

        window_size: tuple[int, int] = (-1, 0)
        kernel: str = "auto"
        strategy: str = "auto"
        placement: str = "auto"

    _sharding_config: Any
    _pos_arg_list: list[str] | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        check_kernel(config.kernel)
        self.config = config
        self.mesh: DeviceMesh | None = None
        self.tensor_ranks = 1

    def parallelize(self, parallel_dims: Any) -> None:
        """Takes the mesh of context parallelism. torchtitan calls it on every module of a model.

        torchtitan declares that keys and values are gathered before the inner attention. LongCA's strategies move them,
        so this module declares that they stay where they are.

        Args:
            parallel_dims: torchtitan's `ParallelDims`.

        Raises:
            UnsupportedError: Context parallelism under another backend than spmd_types.
        """
        self.tensor_ranks = parallel_dims.tp
        if parallel_dims.cp_enabled:
            if parallel_dims.spmd_backend != "spmd_types":
                raise UnsupportedError(
                    f"parallelism.spmd_backend is {parallel_dims.spmd_backend}, and LongCA's context parallelism in "
                    "torchtitan runs under spmd_types, which is the default; take that"
                )
            self.mesh = parallel_dims.get_mesh("cp")
        if (given := self._sharding_config) is not None:
            # Releases of torchtitan name the arguments of an attention in their own ways.
            self._pos_arg_list = list(given.in_src_shardings)
            if self.mesh is not None:
                query = given.in_src_shardings[self._pos_arg_list[0]]
                local = replace(given.local_map, in_grad_placements=(query,) * 3)
                self._sharding_config = replace(given, in_dst_shardings=given.in_src_shardings, local_map=local)
        super().parallelize(parallel_dims)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        attention_masks: BatchMasks | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **others: Any,
    ) -> Tensor:
        """Attention of the tokens of a batch, or of this rank's tokens under context parallelism.

        Args:
            q: Queries: [rows, tokens, Hq, D], or [tokens, Hq, D].
            k: Keys: [rows, tokens, Hkv, D], or [tokens, Hkv, D].
            v: Values, as keys.
            attention_masks: The masks that `prepare_batch` made.
            scale: Factor on the scores. None for 1/√D.
            enable_gqa: Is not needed, and not read: LongCA takes fewer KV heads than query heads.
            **others: Arguments that change the scores or the output, which are refused.

        Returns:
            out, in the shape of the queries.

        Raises:
            RequestError: No masks, or tensors that do not fit them.
            UnsupportedError: An argument that LongCA does not compute, or no kernel takes the problem.
        """
        refused = [f"{name}=" for name, value in others.items() if value is not None]
        if v.shape[-1] != q.shape[-1]:
            refused.append(f"values of head dim {v.shape[-1]} for queries of {q.shape[-1]}")
        if refused:
            raise UnsupportedError(
                f"the model gives its inner attention {', '.join(refused)}. LongCA computes neither changed scores nor "
                "sinks nor unequal head dims; take another inner attention for this model"
            )
        window = self.config.window_size
        if not isinstance(attention_masks, BatchMasks) or window not in attention_masks.masks:
            raise RequestError(
                f"LongCAAttention got attention_masks of type {type(attention_masks).__name__} without a mask of "
                f"window {window}; call prepare_batch in the trainer's post_dataloading_process"
            )
        parallel: dict[str, Any] = {}
        if self.mesh is not None:
            placed = attention_masks.layouts[window]
            parallel = {"strategy": placed.strategy, "mesh": self.mesh, "placement": placed}
        shape = q.shape
        q, k, v = (x.flatten(0, -3) for x in (q, k, v))
        kernel, mask = self.config.kernel, attention_masks.masks[window]
        out = attention(q, k, v, mask, kernel=kernel, softmax_scale=scale, **parallel)
        assert isinstance(out, Tensor)
        return out.view(shape)
