"""LongCA as the core attention of Megatron-LM's layers, on one device and under its context parallelism.

    core_attention=ModuleSpec(module=LongCAAttention, params={"kernel": "auto"})

Megatron shards tokens, applies rotary embeddings and reduces gradients. Its shards of a sequence or of a packed
document are LongCA's placement `zigzag_document`: of 2n chunks, one from either end to each of n ranks. LongCA refuses
other settings by name before the first step.

Source: megatron-core 0.16.1, core/transformer/attention.py (`CoreAttention`, `CoreAttentionBuilder`), core/utils.py
(`get_batch_on_this_cp_rank`), core/extensions/transformer_engine.py (`TEDotProductAttention`) and
core/packed_seq_params.py. The interface is the same in Megatron-LM of August 2026.
"""

from longca.integrations.megatron.core_attention import LongCAAttention
from longca.integrations.megatron.documents import zigzag_layout

__all__ = ["LongCAAttention", "zigzag_layout"]
