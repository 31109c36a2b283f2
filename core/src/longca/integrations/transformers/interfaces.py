"""Interfaces: where transformers finds an attention and its masks by a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longca.errors import MissingPackageError

__all__ = ["add_attention"]

_INSTALL = "pip install 'longca-core[transformers]'"


def add_attention(name: str, attend: Callable[..., Any], make_mask: Callable[..., Any]) -> None:
    """Adds an attention and its masks to both interfaces of transformers. A second call with a name replaces the first.

    Args:
        name: The name for `attn_implementation`.
        attend: Computes the attention of a layer.
        make_mask: Makes the mask of a batch for one kind of layer.

    Raises:
        MissingPackageError: transformers is missing, or too old to have both interfaces.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingPackageError("transformers", "longca.integrations.transformers", _INSTALL) from None
    except ImportError as error:
        import transformers

        raise MissingPackageError(
            f"transformers {getattr(transformers, '__version__', '')} is too old, because it has no interface for both "
            f"attention and masks. Install 4.56 or newer: {_INSTALL}"
        ) from error
    AttentionMaskInterface.register(name, make_mask)
    AttentionInterface.register(name, attend)
