"""Setup: the ranks of a model under context parallelism, how they compute, and whether they can compute it together."""

from __future__ import annotations

import inspect
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
from longca.errors import RequestError, UnsupportedError
from longca.manifests import Layout
from longca.parallel.meshes import groups_of, rank_in
from longca_transformers.layers import computing_dtype
from longca_transformers.model_check import is_stateful

#: Rotary embeddings whose frequencies depend on the longest position, which ranks would see differently.
_DYNAMIC = {"dynamic", "longrope"}


@dataclass(frozen=True, eq=False)
class Setup:
    """The ranks and the strategy of a model, with the arguments of `context_parallel`.

    Attributes:
        heads: Query heads and KV heads.
        head_dims: Head dimension of queries and keys, and that of values.
        model: The model, whose wrappers decide in which data type it computes.
        windows: The number of layers of each kind, by their sliding windows.
    """

    mesh: DeviceMesh
    strategy: str
    placement: str
    kernel: str
    heads: tuple[int, int]
    head_dims: tuple[int, int]
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
        """Everything that a layout depends on, apart from the masks."""
        where = plugins.registry(), self.groups, *self.windows.items()
        return *where, *self.layout_options.items()

    @property
    def dtype(self) -> torch.dtype:
        """The data type of q, k and v in a forward: that of the weights, of FSDP2's mixed precision, or of autocast."""
        policies = (part._get_fsdp_state()._mp_policy for part in self.model.modules() if isinstance(part, FSDPModule))
        cast = next((policy.param_dtype for policy in policies if policy.param_dtype is not None), self.model.dtype)
        with _autocast_of(self.model.forward):
            return computing_dtype(cast, self.mesh.device_type)

    @property
    def layout_options(self) -> dict[str, Any]:
        """The arguments of `longca.layout` and `longca.prefetch`."""
        return {
            "strategy": self.strategy,
            "mesh": self.mesh,
            "heads": self.heads,
            "head_dim": self.head_dims[0],
            "head_dim_v": self.head_dims[1],
            "dtype": self.dtype,
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


def check_model(model: Any) -> None:
    """Checks that the tokens of a model meet in its attention alone."""
    name = type(model).__name__
    if not hasattr(model, "set_attn_implementation") or not hasattr(model, "loss_function"):
        raise RequestError(
            f"model is a {name}; give the model of transformers itself, before DDP wraps it, such as LlamaForCausalLM"
        )
    config = model.config.get_text_config()
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {str(part.get("rope_type")) for part in (rotary, *rotary.values()) if isinstance(part, dict)}
    takes = inspect.signature(model.forward).parameters.values()
    positions = [inspect.signature(part.forward).parameters for part in (model, model.get_decoder())]
    wrong = {
        "is no decoder": model.config.is_encoder_decoder or model.get_output_embeddings() is None,
        "takes no further arguments in its forward": all(each.kind is not each.VAR_KEYWORD for each in takes),
        "does not take its attention from AttentionInterface": not model._can_set_attn_implementation(),
        "takes no position_ids": not any("position_ids" in each for each in positions),
        "counts positions from its padding token": any(
            hasattr(part, "create_position_ids_from_input_ids") for part in model.modules()
        ),
        "keeps a state from token to token, as linear_attention does": is_stateful(model),
        f"has rotary embeddings ({', '.join(sorted(kinds))}) that depend on the longest position of a rank": bool(
            kinds & _DYNAMIC
        ),
        "balances its experts by a loss of its own (output_router_logits)": getattr(
            config, "output_router_logits", False
        ),
        "adds scores of its own to the mask in each layer (keep_window_size)": hasattr(config, "keep_window_size"),
        "has a loss of its own": getattr(model.loss_function, "__name__", "") != "ForCausalLMLoss",
        "drops weights of attention (attention_dropout)": bool(getattr(config, "attention_dropout", 0.0)),
    }
    if reasons := [reason for reason, is_so in wrong.items() if is_so]:
        raise UnsupportedError(
            f"{name} {' and '.join(reasons)}, so context_parallel would not compute what one device does; change the "
            "configuration, or train this model without context_parallel"
        )


def heads_of(model: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """The query heads and KV heads of the layers of a model, and the head dims of keys and values."""
    config = model.config.get_text_config()
    try:
        heads = config.num_attention_heads
        # Layers may repeat their KV heads before they attend. They say how many query heads attend to one then.
        groups = {
            part.num_key_value_groups
            for part in model.modules()
            if getattr(part, "is_causal", False) and hasattr(part, "num_key_value_groups")
        }
        configured = getattr(config, "num_key_value_heads", None) or heads
        heads_kv = heads // groups.pop() if len(groups) == 1 else configured
        if hasattr(config, "qk_nope_head_dim"):  # latent attention, whose head_dim is that of rotary embeddings alone
            dims = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
        else:
            dims = (getattr(config, "head_dim", None) or config.hidden_size // heads,) * 2
        return (heads, heads_kv), dims
    except (RuntimeError, AttributeError) as error:  # transformers' own, for an attribute that each layer or part has
        raise UnsupportedError(
            f"the layers of {type(model).__name__} differ in their heads or head dims, and context_parallel gives all "
            "layers one placement of tokens; train this model without context_parallel"
        ) from error
