"""Interfaces: where transformers finds an attention and its masks by a name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from longca.errors import MissingPackageError, UnsupportedError

#: Decoders that take their attention from a list of their own.
_LISTS = {"falcon": "FALCON_ATTENTION_CLASSES", "gpt_neo": "GPT_NEO_ATTENTION_CLASSES"}


def _refuse(config: Any, *_others: Any) -> NoReturn:
    raise UnsupportedError(
        f"models of {type(config).__name__} take their attention from a list of their own, and not from "
        "AttentionInterface, so that LongCA would not be called; load the model with attn_implementation='eager'"
    )


def add_attention(name: str, attend: Callable[..., Any], make_mask: Callable[..., Any]) -> None:
    """Adds an attention and its masks to both interfaces of transformers, in place of earlier ones of the name."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingPackageError("transformers>=4.56", "longca_transformers") from error
    AttentionMaskInterface.register(name, make_mask)
    AttentionInterface.register(name, attend)
    for model, classes in _LISTS.items():
        getattr(import_module(f"transformers.models.{model}.modeling_{model}"), classes, {})[name] = _refuse
