"""LongCA as the core attention of Megatron's layers, on one device and under Megatron's context parallelism.

A builder of a model gives `with_longca(get_gpt_layer_with_transformer_engine_spec(), kernel="fa3")` to `GPTModel`.

Source: megatron-core 0.16.1, core/transformer/attention.py, core/packed_seq_params.py.
"""

from itertools import pairwise

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.utils import is_layer_window_attention
from torch.distributed.device_mesh import DeviceMesh

import longca
from longca import masks
from longca.errors import RequestError, UnsupportedError

STRATEGIES = {None: "ring_p2p", "p2p": "ring_p2p", "all_gather": "ring_all_gather"}
CAUSAL = {"causal": True, "padding_causal": True, "no_mask": False, "padding": False}
#: Settings that change the attention, with the value under which it is plain.
PLAIN = {"softmax_type": "vanilla", "multi_latent_attention": False, "apply_query_key_layer_scaling": False,
         "qk_clip": False, "fp8_dot_product_attention": False, "experimental_attention_variant": None}  # fmt: skip


def zigzag_layout(mask, bounds, strategy, mesh, heads, **options):
    """The layout whose shards are Megatron's: of 2n chunks of each document, one from either end to each of n ranks."""
    lengths, ranks = [stop - start for start, stop in pairwise(bounds) if stop > start], 2 * mesh.size()
    if any(length % ranks for length in lengths) or bounds[-1] != mask.seqlen_q:
        raise RequestError(
            f"documents have {lengths} tokens of {mask.seqlen_q}, and Megatron cuts each into {ranks} chunks; pad each "
            f"document to a multiple of {ranks} tokens, and give cu_seqlens_q_padded"
        )
    options |= {"strategy": strategy, "mesh": mesh, "heads": heads}
    if len(lengths) == 1:
        return longca.layout(mask, placement="zigzag", **options)
    # The first mask has the documents with their padding, so the placement that both masks share is within these.
    frame = masks.build("causal_document", mask.seqlen_q, documents=lengths)
    return longca.layout([(frame, 1.0), (mask, 1.0)], placement="zigzag_document", **options)[1]


class LongCAAttention(torch.nn.Module):
    """A core attention with the arguments that Megatron's layers give, and `kernel` of `longca.attention`."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, attention_dropout=None,
                 softmax_scale=None, cp_comm_type=None, pg_collection=None, *, kernel="auto", **others):  # fmt: skip
        super().__init__()
        found = {name: getattr(config, name, plain) for name, plain in PLAIN.items()}
        found = {name: value for name, value in found.items() if value != PLAIN[name]}
        found |= {name: value for name, value in others.items() if value is not None}
        if dropout := config.attention_dropout if attention_dropout is None else attention_dropout:
            found["attention_dropout"] = dropout
        windowed = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = tuple(config.window_size) if windowed else (-1, -1)
        if self.window[1] > 0 and CAUSAL.get(attn_mask_type.name):
            found["window_size"] = self.window  # Megatron's core attentions differ in what it means
        self.mesh = None
        if config.context_parallel_size > 1:
            found |= {} if cp_comm_type in STRATEGIES else {"cp_comm_type": cp_comm_type}
            group = pg_collection.cp if pg_collection else parallel_state.get_context_parallel_group()
            device = "cuda" if torch.cuda.is_available() else "cpu"
            self.mesh = DeviceMesh.from_group(group, device, mesh_dim_names=("cp",))
        if found or attention_type != "self":
            raise UnsupportedError(f"layer {layer_number} has {found}, and LongCA computes plain self-attention")
        self.mask_type, self.softmax_scale, self.kernel = attn_mask_type, softmax_scale, kernel
        self.strategy = STRATEGIES.get(cp_comm_type)
        self.latest = None  # the bounds of the latest batch, its mask and its layout

    def forward(self, query, key, value, attention_mask=None, attn_mask_type=None, attention_bias=None,
                packed_seq_params=None):  # fmt: skip
        """Attention of this rank's tokens: [tokens, batch, heads, D], or packed [tokens, heads, D]."""
        kind, packed = (attn_mask_type or self.mask_type).name, packed_seq_params
        if attention_mask is not None or attention_bias is not None or kind not in CAUSAL:
            raise UnsupportedError("LongCA takes no attention_mask: set --no-create-attention-mask-in-dataloader")
        if query.shape[:-2] != key.shape[:-2] or (packed is not None and packed.qkv_format != "thd"):
            raise UnsupportedError("LongCA trains with as many queries as keys, and packs documents as 'thd'")
        ranks = 1 if self.mesh is None else self.mesh.size()
        if packed is None:
            tokens, batch = query.shape[:2]
            documents = padded = tuple(range(0, (batch + 1) * tokens * ranks, tokens * ranks))
            query, key, value = (x.transpose(0, 1).flatten(0, 1) for x in (query, key, value))
        else:
            documents = tuple(packed.cu_seqlens_q.tolist())
            padded = documents if packed.cu_seqlens_q_padded is None else tuple(packed.cu_seqlens_q_padded.tolist())
        about = documents, padded, query.shape, key.shape, CAUSAL[kind]
        if self.latest is None or self.latest[0] != about:
            self.latest = about, *self.planned(*about, query.dtype)
        _, mask, placed = self.latest
        options = {} if placed is None else {"strategy": self.strategy, "mesh": self.mesh, "placement": placed}
        options |= {"kernel": self.kernel, "softmax_scale": self.softmax_scale}
        out = longca.attention(query, key, value, mask, **options).flatten(1)
        return out if packed is not None else out.unflatten(0, (batch, tokens)).transpose(0, 1).contiguous()

    def planned(self, documents, padded, queries, keys, causal, dtype):
        """The mask of all ranks' tokens, whose padding is documents of its own, and the layout of the ranks."""
        bounds = np.array(padded)
        if documents != padded:
            bounds = np.r_[np.stack([bounds[:-1], bounds[:-1] + np.diff(documents)], axis=1).ravel(), bounds[-1]]
        tokens = queries[0] * (1 if self.mesh is None else self.mesh.size())
        mask = masks.from_cu_seqlens(bounds, causal=causal, window_size=self.window, seqlen=tokens)
        if self.mesh is None:
            return mask, None
        heads, options = (queries[1], keys[1]), {"head_dim": queries[2], "dtype": dtype, "kernel": self.kernel}
        return mask, zigzag_layout(mask, padded, self.strategy, self.mesh, heads, **options)


def with_longca(spec, **params):
    """A spec of transformer layers with LongCA in the place of its core attention. It is changed in place."""
    spec.submodules.self_attention.submodules.core_attention = ModuleSpec(module=LongCAAttention, params=params)
    return spec
