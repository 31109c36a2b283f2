"""torchtitan's trainer with LongCA: its attention in every layer, exact masks, and shards by its layout.

torchtitan runs `llama3_8b_longca` of your config registry as it runs its own functions.
"""

from collections import Counter
from dataclasses import dataclass, fields, replace

import torch
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.distributed.spmd_types import annotate_input_spmd_types
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.protocols.module import Module
from torchtitan.trainer import Trainer

import longca
from longca import masks
from longca.errors import RequestError, UnsupportedError


class LongCAAttention(Module):
    """An inner attention. `attention_masks` has the mask of each window, and its layout under context parallelism."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """A window of torchtitan's `VarlenAttention`, and the kernel, strategy and placement of `longca.layout`."""

        window_size: tuple[int, int] = (-1, 0)
        kernel: str = "auto"
        strategy: str = "auto"
        placement: str = "auto"

    def __init__(self, config):
        super().__init__()
        self.config, self.mesh, self.tensor_ranks = config, None, 1

    def parallelize(self, parallel_dims):
        """Takes the mesh of context parallelism, and declares that keys and values stay where they are."""
        self.tensor_ranks, given = parallel_dims.tp, self._sharding_config
        if parallel_dims.cp_enabled:
            if parallel_dims.spmd_backend != "spmd_types":
                raise UnsupportedError("LongCA's context parallelism in torchtitan needs spmd_backend spmd_types")
            self.mesh = parallel_dims.get_mesh("cp")
        if given is not None:
            self._pos_arg_list = list(given.in_src_shardings)  # torchtitan names the arguments in its own way
        if given is not None and self.mesh is not None:
            local = replace(given.local_map, in_grad_placements=(given.in_src_shardings[self._pos_arg_list[0]],) * 3)
            self._sharding_config = replace(given, in_dst_shardings=given.in_src_shardings, local_map=local)
        super().parallelize(parallel_dims)

    def forward(self, q, k, v, *, attention_masks=None, scale=None, enable_gqa=False, **others):
        """Attention of this rank's tokens: [rows, tokens, heads, D] or [tokens, heads, D]."""
        if (refused := [name for name, value in others.items() if value is not None]) or v.shape[-1] != q.shape[-1]:
            raise UnsupportedError(f"LongCA computes one head dim, and nothing of {refused}")
        if not isinstance(attention_masks, dict) or self.config.window_size not in attention_masks:
            raise RequestError("the layer got no mask of LongCA; call prepare_batch in post_dataloading_process")
        mask, placed = attention_masks[self.config.window_size]
        parallel = {} if placed is None else {"strategy": placed.strategy, "mesh": self.mesh, "placement": placed}
        tensors = (x.flatten(0, -3) for x in (q, k, v))
        out = longca.attention(*tensors, mask, kernel=self.config.kernel, softmax_scale=scale, **parallel)
        return out.view(q.shape)


def prepare_batch(models, inputs, labels, dtype=torch.bfloat16):
    """A rank's tokens and labels, and the model's other arguments. A document begins where a position is 0."""
    layers = [module for part in models for module in part.modules() if isinstance(module, LongCAAttention)]
    if not layers or "positions" not in inputs:
        raise RequestError("LongCA needs LongCAAttention in each layer, and a batch with positions")
    if any(type(part).get_attention_masks is not Decoder.get_attention_masks for part in models):
        raise UnsupportedError("the model makes masks of its own, and LongCA has windows within documents alone")
    tokens, others = inputs["input"], {name: value for name, value in inputs.items() if name != "input"}
    begins = others["positions"].cpu() == 0
    begins[..., 0] = True
    bounds = torch.cat([begins.flatten().nonzero().flatten(), torch.tensor([begins.numel()])])
    windows = Counter(layer.config.window_size for layer in layers)
    made = {window: masks.from_cu_seqlens(bounds, causal=False, window_size=window) for window in windows}
    mesh, config, of = layers[0].mesh, models[0].config.first_attention, layers[0].config
    if mesh is None:
        return tokens, labels, {**others, "attention_masks": {window: (mask, None) for window, mask in made.items()}}
    settings = {(layer.config.kernel, layer.config.strategy, layer.config.placement) for layer in layers}
    if len(others) > 1 or len(settings) > 1:
        raise UnsupportedError(f"LongCA shards tokens and positions, with one setting; got {settings}, {[*others]}")
    heads = [heads // layers[0].tensor_ranks for heads in (config.n_heads, config.n_kv_heads or config.n_heads)]
    layouts = longca.layout(
        [(mask, windows[window]) for window, mask in made.items()],
        strategy=of.strategy, mesh=mesh, heads=tuple(heads), head_dim=config.head_dim or config.dim // config.n_heads,
        dtype=dtype, kernel=of.kernel, placement=of.placement,
    )  # fmt: skip
    mine = [layouts[0].shard(x.flatten(), mesh.get_local_rank()) for x in (tokens, labels, others["positions"])]
    tokens, labels, positions = mine if tokens.ndim == 1 else [x[None] for x in mine]
    placed = {window: (mask, layout) for (window, mask), layout in zip(made.items(), layouts, strict=True)}
    return tokens, labels, {"positions": positions, "attention_masks": placed}


class LongCATrainer(Trainer):
    """torchtitan's trainer. LongCA makes the masks of a batch, and shards the batch under context parallelism."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """The settings of torchtitan's trainer."""

    def post_dataloading_process(self, input_dict, labels):
        """A rank's inputs and labels, and the model's other arguments."""
        dtype = TORCH_DTYPE_MAP[self.config.training.mixed_precision_param]
        inputs, labels, arguments = prepare_batch(self.model_parts, input_dict, labels, dtype)
        self.ntokens_seen += labels.numel()
        if self.config.parallelism.spmd_backend == "spmd_types":
            return annotate_input_spmd_types(self.parallel_dims, inputs, labels, arguments)
        return inputs, labels, arguments


def with_longca(config, **settings):
    """A trainer's config with LongCA in every layer. `settings` are those of `LongCAAttention.Config`."""
    for layer in config.model_spec.model.layers:
        window = getattr(layer.attention.inner_attention, "window_size", (-1, 0))
        layer.attention.inner_attention = LongCAAttention.Config(window_size=window, **settings)
    # LongCA reads positions and plans on the host, and its validator would need the same hook as the trainer.
    training = replace(config.training, disable_cuda_graphs=True)
    validator = replace(config.validator, enable=False)
    given = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    return LongCATrainer.Config(**{**given, "training": training, "validator": validator})


def llama3_8b_longca():
    """torchtitan's Llama 3 of 8 billion parameters with LongCA."""
    return with_longca(llama3_8b(), kernel="fa3", strategy="ring_p2p")
