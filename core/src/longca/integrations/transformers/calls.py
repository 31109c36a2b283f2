"""Calls: the checks of a model's arguments before they are sharded. All ranks find the same in the same call."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from longca.errors import RequestError, UnsupportedError
from longca.integrations.transformers.parallel_setup import Setup

__all__ = ["check_alike", "check_arguments", "tokens_of"]

#: Tensors of a call that are sharded or read here. Others would keep the tokens of all ranks.
_KNOWN = {
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "labels",
    "shift_labels",
    "num_items_in_batch",
    "seq_idx",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
}
#: Arguments that ask for what ranks do not compute together, with what to do.
_REFUSED = {
    "past_key_values": "a cache holds the keys of one device. Leave it away, and generate without context_parallel",
    "use_cache": "a cache holds the keys of one device. Give use_cache=False, and generate without context_parallel",
    "cache_position": "decoding runs on one device. Leave it away, and generate without context_parallel",
    "logits_to_keep": "each rank has the logits of its own tokens. Leave it away",
    "output_attentions": "LongCA computes no weights of attention. Leave it away",
    "output_router_logits": "the balance of experts would be that of one rank's tokens. Set it to False",
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tokens_of(given: Mapping[str, Any]) -> Tensor:
    """The tokens of the batch: [rows, tokens] or [rows, tokens, width].

    Raises:
        RequestError: There are none, or they have another shape.
    """
    names = [name for name in ("input_ids", "inputs_embeds") if name in given]
    if len(names) != 1:
        raise RequestError(f"the call gives {' and '.join(names) or 'no tokens'}; give input_ids or inputs_embeds")
    tokens = cast(Tensor, given[names[0]])
    if tokens.ndim != (wanted := 2 if names[0] == "input_ids" else 3):
        raise RequestError(f"{names[0]} has the shape {list(tokens.shape)}; give {wanted} dims, [rows, tokens, ...]")
    return tokens


def check_arguments(given: Mapping[str, Any], setup: Setup) -> None:
    """Checks everything that a rank knows by itself. All ranks find the same in the same call."""
    for name, why in _REFUSED.items():
        value = given.get(name)
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            raise UnsupportedError(f"the call gives {name} under context_parallel, and {why}")
    for name, value in given.items():
        # Releases and models have other names for it.
        if any(base.__name__.endswith("Cache") for base in type(value).__mro__):
            raise UnsupportedError(f"the call gives {name} under context_parallel, and {_REFUSED['past_key_values']}")
        if isinstance(value, Tensor) and name not in _KNOWN:
            raise UnsupportedError(
                f"the call gives the tensor {name}, and context_parallel does not know how to shard it; leave it away"
            )
    tokens = tokens_of(given)
    rows, length = tokens.shape[:2]
    if rows * length < setup.mesh.size():
        raise RequestError(
            f"the batch has {rows * length} tokens, and the mesh {setup.mesh.size()} ranks; give each rank one token "
            "at least"
        )
    if tokens.device.type != setup.mesh.device_type:
        raise RequestError(
            f"the batch is on {tokens.device}, and the mesh is of {setup.mesh.device_type}; give both the same device"
        )
    for name in ("labels", "shift_labels", "attention_mask", "position_ids"):
        value, allowed = given.get(name), [(rows, length)] + [(1, length)] * (name == "position_ids")
        if value is not None and (not isinstance(value, Tensor) or tuple(value.shape) not in allowed):
            found = (
                f"the shape {list(value.shape)}" if isinstance(value, Tensor) else f"the type {type(value).__name__}"
            )
            raise RequestError(
                f"{name} has {found}, and the batch {rows} rows of {length} tokens; give [{rows}, {length}] of the "
                "whole batch, and masks of pairs by longca.integrations.transformers.using(mask)"
            )


def check_alike(given: Mapping[str, Any], setup: Setup) -> None:
    """Checks that the ranks have the same batch. They compare a digest.

    Raises:
        RequestError: They differ.
    """
    tensors = {name: given[name] for name in sorted(_KNOWN & given.keys()) if isinstance(given[name], Tensor)}
    about = {name: (list(x.shape), str(x.dtype)) for name, x in tensors.items()}
    digest = torch.tensor(zlib.crc32(repr(about).encode()), device=tokens_of(given).device)
    for x in tensors.values():
        numbers = x.detach().contiguous().flatten().view(_INTEGERS[x.itemsize]).long().to(digest.device)
        places = torch.arange(1, len(numbers) + 1, device=digest.device)
        digest = digest * 1000003 + (numbers * (places * 2654435761 + 1)).sum()
    extremes = torch.stack([digest, -digest])
    for group in setup.groups:
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    if extremes[0] != -extremes[1]:
        raise RequestError(
            "the ranks of the mesh have different batches, and each would train on a part of its own; give all ranks "
            "of the context-parallel mesh the same input_ids, position_ids and labels (a data loader must shard over "
            "the data-parallel ranks alone)"
        )
