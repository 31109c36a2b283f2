"""Parallel models: whether ranks can compute a model together, by its attention alone."""

from __future__ import annotations

import inspect
from typing import Any

from longca.errors import RequestError, UnsupportedError
from longca.integrations.transformers.model_check import is_stateful

__all__ = ["check_default_positions", "check_model", "heads_of"]

#: Rotary embeddings whose frequencies depend on the longest position, which ranks would see differently.
_DYNAMIC = {"dynamic", "longrope"}


def check_model(model: Any) -> None:
    """Checks that the tokens of a model meet in its attention alone.

    Raises:
        RequestError: It is no model of transformers.
        UnsupportedError: Ranks cannot compute it together.
    """
    name = type(model).__name__
    if not hasattr(model, "set_attn_implementation") or not hasattr(model, "loss_function"):
        raise RequestError(
            f"model is a {name}; give the model of transformers itself, before DDP wraps it, such as LlamaForCausalLM"
        )
    config = model.config.get_text_config()
    rotary = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {str(part.get("rope_type")) for part in (rotary, *rotary.values()) if isinstance(part, dict)}
    takes = inspect.signature(model.forward).parameters.values()
    wrong = {
        "is no decoder": model.config.is_encoder_decoder or model.get_output_embeddings() is None,
        "takes no further arguments in its forward": all(each.kind is not each.VAR_KEYWORD for each in takes),
        "does not take its attention from AttentionInterface": not model._can_set_attn_implementation(),
        "takes no position_ids": all(
            "position_ids" not in inspect.signature(part.forward).parameters for part in (model, model.get_decoder())
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


def check_default_positions(model: Any) -> None:
    """Checks that a model counts positions from 0, for a batch without them.

    Raises:
        RequestError: It counts from its padding token, as RoBERTa does.
    """
    if any(hasattr(part, "create_position_ids_from_input_ids") for part in model.modules()):
        raise RequestError(
            f"{type(model).__name__} counts positions from the number of its padding token, and the call gives none; "
            "give position_ids, as DataCollatorWithFlattening(position_ids_start=...) does"
        )


def heads_of(model: Any) -> tuple[tuple[int, int], int]:
    """The query heads and KV heads of the layers of a model, and their head dim.

    Raises:
        UnsupportedError: Layers differ in them.
    """
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
        return (heads, heads_kv), getattr(config, "head_dim", None) or config.hidden_size // heads
    except (RuntimeError, AttributeError) as error:  # transformers' own, for an attribute that each layer or part has
        raise UnsupportedError(
            f"the layers of {type(model).__name__} differ in their heads or head dims, and context_parallel gives all "
            "layers one placement of tokens; train this model without context_parallel"
        ) from error
