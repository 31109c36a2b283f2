"""A Megatron layer spec with LongCA as its core attention.

A builder of a model gives `with_longca(get_gpt_layer_with_transformer_engine_spec(), kernel="fa3")` to `GPTModel`.
"""

from typing import Any

from megatron.core.transformer.spec_utils import ModuleSpec

from longca.integrations.megatron import LongCAAttention


def with_longca(spec: ModuleSpec, **params: Any) -> ModuleSpec:
    """A spec of transformer layers with LongCA in the place of its core attention.

    Args:
        spec: A spec of Megatron, such as `get_gpt_layer_local_spec()`. It is changed in place.
        **params: `kernel` of `LongCAAttention`.
    """
    spec.submodules.self_attention.submodules.core_attention = ModuleSpec(module=LongCAAttention, params=params)
    return spec
