"""The core attention of a layer."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from longca.errors import UnsupportedError
from longca.integrations.megatron.documents import bounds_of, mask_of, mesh_of, zigzag_layout
from longca.kernels.attention import attention, check_kernel, check_settings
from longca.manifests import Layout
from longca.plan_cache import PlanCache

__all__ = ["LongCAAttention"]

#: The strategy that keeps tokens where Megatron has them, for each way in which Megatron would move keys and values.
_STRATEGIES = {None: "ring_p2p", "p2p": "ring_p2p", "all_gather": "ring_all_gather"}
#: Megatron's kinds of masks, with whether they are causal.
_CAUSAL = {"causal": True, "padding_causal": True, "no_mask": False, "padding": False}
#: Settings that change the attention, with the values under which it is plain.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "softmax_type": ("vanilla",),
    "multi_latent_attention": (False,),
    "apply_query_key_layer_scaling": (False,),
    "qk_clip": (False,),
    "log_max_attention_logit": (False,),
    "fp8_dot_product_attention": (False,),
    "fp8_multi_head_attention": (False,),
    "batch_invariant_mode": (False,),
    "experimental_attention_variant": (None,),
    "hierarchical_context_parallel_sizes": (None,),
}
#: The latest layouts. All layers and all steps with the same bounds share them.
_LAYOUTS: PlanCache[Layout] = PlanCache(64)


class LongCAAttention(torch.nn.Module):
    """A core attention of Megatron, with the arguments that Megatron's layers give.

    Args:
        config: Megatron's `TransformerConfig`.
        layer_number: The layer's number, from 1.
        attn_mask_type: Megatron's `AttnMaskType` of the layer.
        attention_type: Must be `self`.
        attention_dropout: Must be 0. None for that of the config.
        softmax_scale: Factor on the scores. None for 1/√D.
        cp_comm_type: The way to move keys and values under context parallelism: `p2p` is LongCA's strategy `ring_p2p`,
            and `all_gather` is `ring_all_gather`.
        pg_collection: Megatron's process groups. None for its global ones.
        kernel: As in `longca.attention`.
        **others: Other arguments, which are refused.

    Raises:
        UnsupportedError: A setting that LongCA does not compute.
        RequestError: The kernel is no name.
        UnknownNameError: Nobody provides the kernel.
    """

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        *,
        kernel: str = "auto",
        **others: Any,
    ) -> None:
        super().__init__()
        check_settings(kernel, softmax_scale)
        check_kernel(kernel)
        dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        asked = {name: getattr(config, name, plain[0]) for name, plain in _PLAIN.items()}
        found = {name: value for name, value in asked.items() if value not in _PLAIN[name]}
        found |= {"attention_dropout": dropout} if dropout else {}
        found |= {"attention_type": attention_type} if attention_type != "self" else {}
        found |= {name: value for name, value in others.items() if value is not None}
        from megatron.core.transformer.utils import is_layer_window_attention

        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        window: tuple[int, int] = tuple(config.window_size) if windowed else (-1, -1)
        if window[1] > 0 and _CAUSAL.get(attn_mask_type.name):
            found["window_size"] = window  # Megatron's core attentions differ in what it means
        if config.context_parallel_size > 1 and cp_comm_type not in _STRATEGIES:
            found["cp_comm_type"] = cp_comm_type
        if found:
            raise UnsupportedError(
                f"layer {layer_number} has {', '.join(f'{name}={value!r}' for name, value in found.items())}, and "
                "LongCA computes plain attention without dropout, with cp_comm_type p2p or all_gather. Change the "
                "setting, or keep Megatron's own core attention in this layer"
            )
        self.window = window
        self.mask_type, self.softmax_scale, self.kernel = attn_mask_type, softmax_scale, kernel
        self.deterministic, self.strategy = bool(config.deterministic_mode), _STRATEGIES.get(cp_comm_type, "")
        self.group: ProcessGroup | None = None
        if config.context_parallel_size > 1:
            self.group = _global_group() if pg_collection is None else pg_collection.cp

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attention of the tokens of a batch, or of this rank's tokens under context parallelism.

        Args:
            query: Queries: [tokens, batch, Hq, D], or packed [tokens, Hq, D].
            key: Keys, as many as queries: [tokens, batch, Hkv, D] or [tokens, Hkv, D].
            value: Values, as keys.
            attention_mask: Must be None.
            attn_mask_type: Megatron's `AttnMaskType`. None for that of the layer.
            attention_bias: Must be None.
            packed_seq_params: Megatron's `PackedSeqParams`: bounds of packed documents, of all ranks' tokens.

        Returns:
            out [tokens, batch, Hq · D], or packed [tokens, Hq · D].

        Raises:
            RequestError: Bounds or tensors that do not fit one another.
            UnsupportedError: A mask, a bias or a way to pack that LongCA does not compute, or no kernel takes it.
        """
        kind = (attn_mask_type or self.mask_type).name
        _refuse(query, key, value, kind, attention_mask, attention_bias, packed_seq_params)
        ranks = 1 if self.group is None else self.group.size()
        if packed_seq_params is None:
            tokens, batch = query.shape[:2]
            padded = documents = tuple(range(0, (batch + 1) * tokens * ranks, tokens * ranks))
            q, k, v = (x.transpose(0, 1).flatten(0, 1) for x in (query, key, value))
        else:
            documents, padded = bounds_of(packed_seq_params)
            q, k, v = query, key, value
        mask = mask_of(documents, padded, q.shape[0] * ranks, _CAUSAL[kind], self.window)
        parallel: dict[str, Any] = {}
        if self.group is not None and ranks > 1:
            mesh = mesh_of(self.group, q.device.type)
            heads, asked = (q.shape[1], k.shape[1]), {"head_dim": q.shape[2], "dtype": q.dtype, "kernel": self.kernel}
            about = padded, self.strategy, mesh, self.group, heads, *asked.values()
            placed = _LAYOUTS.get(mask, about, lambda: zigzag_layout(mask, padded, self.strategy, mesh, heads, **asked))
            parallel = {"strategy": self.strategy, "mesh": mesh, "placement": placed}
        options = {"kernel": self.kernel, "deterministic": self.deterministic, **parallel}
        out = cast(Tensor, attention(q, k, v, mask, softmax_scale=self.softmax_scale, **options)).flatten(1)
        return out if packed_seq_params is not None else out.unflatten(0, (batch, tokens)).transpose(0, 1).contiguous()


def _refuse(query: Tensor, key: Tensor, value: Tensor, kind: str, mask: Any, bias: Any, packed: Any) -> None:
    """Refuses a call that LongCA does not compute."""
    if mask is not None:
        raise UnsupportedError(
            "the batch has an attention_mask, and LongCA takes the mask from attn_mask_type, window_size and "
            "packed_seq_params; set --no-create-attention-mask-in-dataloader, and pack documents by packed_seq_params"
        )
    if bias is not None:
        raise UnsupportedError("the layer gives an attention_bias, and LongCA computes no biases of scores; remove it")
    if kind not in _CAUSAL:
        raise UnsupportedError(f"the layer has attn_mask_type {kind}, and LongCA takes {', '.join(_CAUSAL)}")
    if query.shape[:-2] != key.shape[:-2] or key.shape != value.shape or query.shape[-1] != key.shape[-1]:
        raise UnsupportedError(
            f"query, key and value have the shapes {list(query.shape)}, {list(key.shape)} and {list(value.shape)}. "
            "LongCA trains with as many queries as keys and one head dim; decode, and attend to latents, with "
            "Megatron's own core attention"
        )
    if packed is not None and packed.qkv_format != "thd":
        raise UnsupportedError(f"packed_seq_params has qkv_format {packed.qkv_format!r}, and LongCA takes 'thd'")
    if packed is not None and (packed.cp_group is not None or packed.local_cp_size is not None):
        raise UnsupportedError("packed_seq_params has a cp_group of its own, and LongCA takes the layer's; turn it off")


def _global_group() -> ProcessGroup:
    from megatron.core import parallel_state

    return cast(ProcessGroup, parallel_state.get_context_parallel_group())
