"""Model check: whether LongCA computes the attention of a model, as the model's next forward shows.

transformers calls LongCA only for models that take their attention from `AttentionInterface`, and says nothing of other
models. So the calls of layers are counted in a forward.
"""

from __future__ import annotations

from typing import Any

import torch

from longca.errors import UnsupportedError

_calls = 0


def count_call() -> None:
    """Counts a call of LongCA by a layer of a model."""
    global _calls
    _calls += 1


def is_stateful(model: torch.nn.Module) -> bool:
    """Whether layers of a model keep a state from token to token."""
    config: Any = model.config
    is_linear = "linear_attention" in (getattr(config.get_text_config(), "layer_types", None) or [])
    recurrent = any(isinstance(part, (torch.nn.Conv1d, torch.nn.RNNBase)) for part in model.modules())
    return is_linear or recurrent or bool(getattr(model, "_is_stateful", False))


def check(model: torch.nn.Module) -> None:
    """Checks in the next forward of a model that LongCA computes its attention. Other forwards cost nothing.

    Raises:
        UnsupportedError: By the forward. None of the model's layers called LongCA.
    """
    before = _calls

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def enter(*_call: Any) -> None:
        nonlocal before
        before = _calls

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def leave(*_call: Any) -> None:
        if _calls == before:
            found = getattr(getattr(model, "config", None), "_attn_implementation", None)
            raise UnsupportedError(
                f"{type(model).__name__} computed its attention without LongCA, with attn_implementation={found!r}. "
                "Make the model with attn_implementation='longca' after register(). If you did, this release of "
                "transformers does not take the attention of this model from AttentionInterface; take another release "
                "or another model"
            )
        for hook in hooks:
            hook.remove()

    hooks = model.register_forward_pre_hook(enter), model.register_forward_hook(leave)
