"""Boundaries: where packed documents start in `position_ids`, and whether the masks of a batch know it.

transformers reads boundaries from `position_ids` only if a call has neither a cache nor an `attention_mask` of two
dims. Its mask interface is not given the positions, so they are read from the frame of the caller. Some models give
their layers neither the positions nor other arguments of the call, so these are read from the call of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longca.errors import RequestError
from longca.integrations.transformers.mask_functions import HOME
from longca.kernels.shapes import contents_of
from longca.masks import Mask, SliceMask

__all__ = [
    "WITHOUT_POSITIONS",
    "LostStart",
    "call_of_model",
    "check_positions",
    "lost_start",
    "positions_of_caller",
    "refuse",
]

#: The code by which PyTorch calls a module. Its frame has the module and the arguments.
_CALL = torch.nn.Module._call_impl.__code__

#: What to do with a model that makes its masks without positions.
WITHOUT_POSITIONS = "give the mask by using(mask), or as an attention_mask of four dims if that is refused"
#: Positions whose documents are in the masks, with the contents of the tensor and the masks.
_CHECKED = WeakTensorKeyDictionary()


class LostStart(NamedTuple):
    """A token that starts a document and sees the document before it.

    Attributes:
        row: The row of the batch.
        token: The index of the token.
    """

    row: int
    token: int


def positions_of_caller() -> Tensor | None:
    """The `position_ids` that the model gave to the function of transformers that asks for a mask."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != HOME:
        frame = frame.f_back
    found = None if frame is None else frame.f_locals.get("position_ids")
    return found if isinstance(found, Tensor) else None


def call_of_model() -> dict[str, Any] | None:
    """The named arguments of the model of transformers that is being called. None outside of such a call.

    A model may hold another one. The arguments of the outer model come first. Those that are None are left out.
    """
    from transformers import PreTrainedModel

    found: dict[str, Any] | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            about = frame.f_locals
            if isinstance(about["self"], PreTrainedModel):
                given = {name: value for name, value in about["kwargs"].items() if value is not None}
                found = {**(found or {}), **given}
        frame = frame.f_back
    return found


def lost_start(positions: Tensor, masks: Sequence[Mask]) -> LostStart | None:
    """The first token whose position does not follow that of the last key that it sees.

    A token that does not see itself is padding and is passed over. After padding between two tokens, the positions may
    count the padding or not.

    Args:
        positions: Integers [rows or 1, tokens]. Positions of another shape are passed over.
        masks: The mask of each row: tokens × tokens.
    """
    if positions.ndim != 2 or positions.shape[1] != masks[0].seqlen_q:
        return None
    numbers = positions.detach().long().cpu().numpy()
    for row, mask in enumerate(masks):
        if not isinstance(mask, SliceMask):
            continue
        mine, places = numbers[row % len(numbers)], np.arange(mask.seqlen_q)
        starts, stops = mask.row_intervals()
        is_shown = ((starts <= places) & (places < stops)).any(0)
        before = np.where(starts < places, np.minimum(stops, places), 0).max(0, initial=0) - 1
        step = mine - mine[before]
        found = is_shown & (before >= 0) & (step != 1) & (step != places - before)
        if found.any():
            return LostStart(row, int(found.argmax()))
    return None


def check_positions(positions: Any, masks: Sequence[Mask]) -> None:
    """Checks the positions of a layer whose model makes masks without them. All layers give one tensor.

    Raises:
        RequestError: A mask has no boundary where the positions start again.
    """
    if not isinstance(positions, Tensor):
        return
    state = contents_of(positions), tuple(mask.key for mask in masks)
    if _CHECKED.get(positions) != state:
        if (lost := lost_start(positions, masks)) is not None:
            refuse(lost, "the model makes its masks without position_ids", WITHOUT_POSITIONS)
        _CHECKED[positions] = state


def refuse(lost: LostStart, why: str, what_to_do: str) -> None:
    """Refuses packed documents that would see each other.

    Raises:
        RequestError: Always.
    """
    raise RequestError(
        f"position_ids of row {lost.row} start again at token {lost.token}, and {why}, so that documents would see "
        f"each other; {what_to_do}"
    )
