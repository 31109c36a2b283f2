"""Batches: the masks of a batch of torchtitan's dataloader, and a rank's shard of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.models.common.decoder import Decoder

from longca.errors import RequestError, UnsupportedError
from longca.integrations.torchtitan.inner_attention import BatchMasks, LongCAAttention, Window
from longca.manifests import Layout
from longca.masks import Mask, from_cu_seqlens
from longca.parallel.layouts import layout

__all__ = ["prepare_batch"]


def prepare_batch(
    models: Sequence[torch.nn.Module],
    inputs: dict[str, Tensor],
    labels: Tensor,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The inputs of a model, with the masks of its layers, sharded under context parallelism.

    A document begins where a position is 0, as for torchtitan's own masks, and at the start of a row. Positions are
    read on the host. Under context parallelism all rows are packed into one, and a rank gets the tokens, labels and
    positions of its shard: [1, tokens of the rank], or [tokens of the rank] where torchtitan gives [tokens].

    Args:
        models: The parts of the model that this process holds, parallelized.
        inputs: The batch of torchtitan's dataloader, with `input` and `positions`: [rows, tokens] or [tokens] each.
        labels: As the tokens.
        dtype: The dtype of queries, keys and values, for the choice of a kernel and a strategy.

    Returns:
        The model's tokens, the labels, and the model's other arguments: positions and attention_masks.

    Raises:
        RequestError: No positions, no layer of LongCA, or layers with different strategies or placements.
        UnsupportedError: Another input for each token under context parallelism. Or no kernel takes the masks.
    """
    layers = [module for part in models for module in part.modules() if isinstance(module, LongCAAttention)]
    _check(models, layers, inputs)
    tokens, positions = inputs["input"], inputs["positions"]
    others = {name: value for name, value in inputs.items() if name != "input"}
    bounds = _bounds(positions)
    windows = Counter(layer.config.window_size for layer in layers)
    masks: dict[Window, Mask] = {
        window: from_cu_seqlens(bounds, causal=False, window_size=window) for window in windows
    }
    mesh = layers[0].mesh
    if mesh is None:
        return tokens, labels, {**others, "attention_masks": BatchMasks(masks, {})}
    if more := sorted(set(others) - {"positions"}):
        raise UnsupportedError(
            f"the batch has {', '.join(more)}, and LongCA shards tokens, labels and positions alone; train without "
            "context parallelism"
        )
    weighed = [(mask, windows[window]) for window, mask in masks.items()]
    layouts = dict(zip(masks, _layouts(models, layers, weighed, mesh, dtype), strict=True))
    first, rank = next(iter(layouts.values())), mesh.get_local_rank()
    mine = [first.shard(x.flatten(), rank) for x in (tokens, labels, positions)]
    shaped = mine if tokens.ndim == 1 else [x[None] for x in mine]
    return shaped[0], shaped[1], {"positions": shaped[2], "attention_masks": BatchMasks(masks, layouts)}


def _check(models: Sequence[torch.nn.Module], layers: Sequence[LongCAAttention], inputs: dict[str, Tensor]) -> None:
    """Refuses models whose masks are more than windows within documents, and batches without documents."""
    if not layers:
        raise RequestError(
            "no layer of the model has LongCAAttention; set inner_attention of each layer's attention to "
            "LongCAAttention.Config()"
        )
    for part in models:
        if getattr(type(part), "get_attention_masks", None) is not Decoder.get_attention_masks:
            raise UnsupportedError(
                f"{type(part).__name__} makes masks of its own, and LongCA would compute windows within documents "
                "instead; take another inner attention for this model"
            )
    if "positions" not in inputs:
        raise RequestError(
            "this batch has no positions, so its documents are not known; take a dataloader of torchtitan that gives "
            "them"
        )


def _bounds(positions: Tensor) -> Tensor:
    """The bounds of the documents of all rows: integers [documents + 1]."""
    begins = positions.detach().cpu() == 0
    begins[..., 0] = True
    return torch.cat([begins.flatten().nonzero().flatten(), torch.tensor([begins.numel()])])


def _layouts(
    models: Sequence[torch.nn.Module],
    layers: Sequence[LongCAAttention],
    weighed: Sequence[tuple[Mask, int]],
    mesh: DeviceMesh,
    dtype: torch.dtype,
) -> tuple[Layout, ...]:
    """The layout of each mask, with the same shards in all. Each mask is weighed by the number of its layers."""
    settings = {(layer.config.kernel, layer.config.strategy, layer.config.placement) for layer in layers}
    if len(settings) > 1:
        raise RequestError(
            f"layers have different kernels, strategies or placements: {', '.join(map(str, sorted(settings)))}. A "
            "token is on one rank in all layers; give all of them the same"
        )
    kernel, strategy, placement = settings.pop()
    config: Any = models[0].config.first_attention  # type: ignore[union-attr]  # torchtitan's Decoder
    tensor_ranks, heads_kv = layers[0].tensor_ranks, config.n_kv_heads or config.n_heads
    return layout(
        weighed,
        strategy=strategy,
        mesh=mesh,
        heads=(config.n_heads // tensor_ranks, heads_kv // tensor_ranks),
        head_dim=config.head_dim or config.dim // config.n_heads,
        dtype=dtype,
        kernel=kernel,
        placement=placement,
    )
