"""ShardedBatch: a batch of all ranks, cut into the tokens of this rank before a model sees it.

The rows of a batch and its packed documents become documents of one sequence [T]. The masks are made of that whole
sequence, one for each kind of layer, and `longca.layout` places its tokens once for all layers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from longca.errors import RequestError, UnsupportedError
from longca_transformers.boundaries import check_names
from longca_transformers.parallel_setup import Setup
from longca_transformers.sharded_masks import ShardedMask, sharded_masks

IGNORED = -100
#: Arguments that are cut into this rank's tokens.
_TOKENS = {"input_ids", "inputs_embeds", "position_ids", "labels", "shift_labels"}
#: Arguments that are in the masks, and that a rank's model does not get.
_BOUNDS = {"attention_mask", "longca_mask", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
#: Tensors of a call that are sharded or read here. Others would keep the tokens of all ranks.
_KNOWN = _TOKENS | _BOUNDS | {"num_items_in_batch"}
_CACHE = "a cache holds the keys of one device. Leave it away, and generate without context_parallel"
#: Arguments that ask for what ranks do not compute together, with what to do.
_REFUSED = {
    "past_key_values": _CACHE,
    "use_cache": "a cache holds the keys of one device. Give use_cache=False, and generate without context_parallel",
    "cache_position": "decoding runs on one device. Leave it away, and generate without context_parallel",
    "logits_to_keep": "each rank has the logits of its own tokens. Leave it away",
    "output_attentions": "LongCA computes no weights of attention. Leave it away",
    "output_router_logits": "the balance of experts would be that of one rank's tokens. Set it to False",
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class ShardedBatch:
    """A batch, cut into the tokens of this rank.

    Attributes:
        arguments: The arguments of the model's call, with this rank's tokens: [1, Tl].
        masks: The mask of each kind of layer, by its sliding window.
        shape: Rows and tokens of the whole batch.
        is_shifted: Whether the call gave `shift_labels`.
    """

    arguments: dict[str, Any]
    masks: dict[int | None, ShardedMask]
    shape: tuple[int, int]
    is_shifted: bool

    @classmethod
    def of(cls, arguments: Mapping[str, Any], setup: Setup) -> ShardedBatch:
        """Cuts a batch. It is a collective call."""
        given = {name: value for name, value in arguments.items() if value is not None}
        tokens = tokens_of(given)
        check_names(given)
        _check_refused(given)
        _check_shapes(given, tokens, setup)
        _check_alike(given, tokens, setup)
        shape = tokens.shape[0], tokens.shape[1]
        batch = cls({}, sharded_masks(given, tokens, setup), shape, "shift_labels" in given)
        batch.arguments.update(batch._cut(given, tokens))
        return batch

    def shard(self, x: Tensor) -> Tensor:
        """This rank's tokens of a tensor [rows, tokens, ...]: [1, Tl, ...]."""
        if tuple(x.shape[:2]) != self.shape:
            raise RequestError(
                f"a tensor of the shape {list(x.shape)} was to be sharded, and the batch has {self.shape[0]} rows of "
                f"{self.shape[1]} tokens; give [rows, tokens, ...] of the whole batch"
            )
        held = next(iter(self.masks.values()))
        return held.layout.shard(x.flatten(0, 1), held.setup.rank_in(held.layout))[None]

    def whole(self, x: Tensor) -> Tensor:
        """An output of the model, of all ranks' tokens if it has one number for each: [1, Tl] becomes [rows, tokens].

        The gradient is that of this rank's tokens. Other outputs, such as logits, stay as they are. It is a collective
        call.
        """
        if x.ndim != 2:
            return x
        places = self.shard(torch.arange(self.shape[0] * self.shape[1], device=x.device).view(self.shape))
        if x.shape != places.shape:
            return x
        setup = next(iter(self.masks.values())).setup
        mine = x.new_zeros(self.shape).flatten().index_copy(0, places[0], x[0].detach())
        everyones = setup.total(mine.byte()).bool() if x.dtype == torch.bool else setup.total(mine)
        whole = everyones.index_copy(0, places[0], x[0]).view(self.shape)
        # TRL's fused head has one number for each target, and the last token of a row has none.
        return whole[:, :-1] if "fused_lm_head" in self.arguments and not self.is_shifted else whole

    def _cut(self, given: dict[str, Any], tokens: Tensor) -> dict[str, Any]:
        """The arguments with this rank's tokens, true positions and targets."""
        cut = {name: value for name, value in given.items() if name not in _BOUNDS}
        for name in {"input_ids", "inputs_embeds"} & cut.keys():
            cut[name] = self.shard(cut[name])
        positions = given.get("position_ids", torch.arange(self.shape[1], device=tokens.device)[None])
        cut |= {"position_ids": self.shard(positions.expand(self.shape)), "use_cache": False}
        if "labels" in given or "shift_labels" in given:
            targets = given.get("shift_labels")
            if targets is None:
                targets = pad(given["labels"], (0, 1), value=IGNORED)[:, 1:]
            if "num_items_in_batch" not in given:
                cut["num_items_in_batch"] = (targets != IGNORED).sum()
            cut["labels"] = cut["shift_labels"] = self.shard(targets)
        return cut


def tokens_of(given: Mapping[str, Any]) -> Tensor:
    """The tokens of the batch: [rows, tokens] or [rows, tokens, width]."""
    names = [name for name in ("input_ids", "inputs_embeds") if name in given]
    if len(names) != 1:
        raise RequestError(f"the call gives {' and '.join(names) or 'no tokens'}; give input_ids or inputs_embeds")
    tokens = cast(Tensor, given[names[0]])
    if tokens.ndim != (wanted := 2 if names[0] == "input_ids" else 3):
        raise RequestError(f"{names[0]} has the shape {list(tokens.shape)}; give {wanted} dims, [rows, tokens, ...]")
    return tokens


def _check_refused(given: Mapping[str, Any]) -> None:
    """Checks that no argument asks for what ranks do not compute together."""
    for name, value in given.items():
        is_cache = any(base.__name__.endswith("Cache") for base in type(value).__mro__)  # its name differs by release
        is_set = value is not False and not (isinstance(value, int) and value == 0)
        if is_cache or (name in _REFUSED and is_set):
            raise UnsupportedError(f"the call gives {name} under context_parallel, and {_REFUSED.get(name, _CACHE)}")
        if isinstance(value, Tensor) and name not in _KNOWN:
            raise UnsupportedError(
                f"the call gives the tensor {name}, and context_parallel does not know how to shard it; leave it away"
            )


def _check_shapes(given: Mapping[str, Any], tokens: Tensor, setup: Setup) -> None:
    """Checks the number of tokens, their device, and the shapes of tensors with one number for each."""
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
            found = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
            raise RequestError(
                f"{name} has the {found}, and the batch {rows} rows of {length} tokens; give [{rows}, {length}] of the "
                "whole batch, and masks of pairs by longca_transformers.using(mask)"
            )


def _check_alike(given: Mapping[str, Any], tokens: Tensor, setup: Setup) -> None:
    """Checks by a digest that the ranks have the same batch."""
    tensors = {name: given[name] for name in sorted(_KNOWN & given.keys()) if isinstance(given[name], Tensor)}
    about = {name: (list(x.shape), str(x.dtype)) for name, x in tensors.items()}
    digest = torch.tensor(zlib.crc32(repr(about).encode()), device=tokens.device)
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
