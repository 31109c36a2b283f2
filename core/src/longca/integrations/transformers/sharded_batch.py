"""ShardedBatch: a batch of all ranks, cut into the tokens of this rank before a model sees it.

The rows of a batch and its packed documents become documents of one sequence [T]. The masks are made of that whole
sequence, one for each kind of layer, and `longca.layout` places its tokens once for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from longca.errors import RequestError
from longca.integrations.transformers.boundaries import check_names
from longca.integrations.transformers.calls import check_alike, check_arguments, tokens_of
from longca.integrations.transformers.parallel_setup import Setup
from longca.integrations.transformers.sharded_masks import ShardedMask, sharded_masks

__all__ = ["ShardedBatch"]

IGNORED = -100


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
        """Cuts a batch. It is a collective call.

        Args:
            arguments: The arguments of a model's call, the same on all ranks.
            setup: The ranks and the strategy.

        Raises:
            RequestError: The ranks have different batches, or the batch does not fit.
            UnsupportedError: The call asks for what ranks do not compute together.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        tokens = tokens_of(given)
        check_names(given)
        check_arguments(given, setup)
        check_alike(given, setup)
        shape = tokens.shape[0], tokens.shape[1]
        batch = cls({}, sharded_masks(given, tokens, setup), shape, "shift_labels" in given)
        batch.arguments.update(batch._cut(given, tokens))
        return batch

    def shard(self, x: Tensor) -> Tensor:
        """This rank's tokens of a tensor [rows, tokens, ...]: [1, Tl, ...].

        Raises:
            RequestError: The tensor has another shape than the batch.
        """
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
        bounds = {"seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}
        dropped = {"attention_mask", "longca_mask", *bounds}
        cut = {name: value for name, value in given.items() if name not in dropped}
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
