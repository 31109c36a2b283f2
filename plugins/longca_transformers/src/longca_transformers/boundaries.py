"""Boundaries: where packed documents start in the arguments of a call, and whether the masks of a batch know it.

transformers reads boundaries from `position_ids` only if a call has neither a cache nor an `attention_mask` of two
dims. Its mask interface is not given the positions, so they are read from the frame of the caller. Some models give
their layers neither the positions nor other arguments of the call, so these are read from the call of the model.
transformers casts the numbers of an `attention_mask` to booleans, so they are read from the call too.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from longca.errors import RequestError
from longca.kernels.shapes import contents_of
from longca.masks import Mask, SliceMask
from longca_transformers.mask_functions import HOME

#: The code by which PyTorch calls a module. Its frame has the module and the arguments.
_CALL = torch.nn.Module._call_impl.__code__

#: What to do with a model that makes its masks without positions.
WITHOUT_POSITIONS = "give the mask by using(mask), or as an attention_mask of four dims if that is refused"
#: Positions whose documents are in the masks, with the contents of the tensor and the masks.
_CHECKED = WeakTensorKeyDictionary()
#: Names by which other libraries tell documents. transformers drops an argument that it does not know.
_DOCUMENTS = re.compile(
    r"(cu|actual)?_?(seq|sequence)s?_?(len|id)|(doc|document|segment|sample)s?(_?(id|ind|len|mask|start|bound)|$)"
    r"|(pack|packed|packing)_?(seq|len|id|doc)|lengths$|attention_mask_in_length"
)
#: The arguments of transformers' collators, which LongCA reads.
_READ = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"})


class LostStart(NamedTuple):
    """A token that starts a document and sees the document before it: its row of the batch, and its index."""

    row: int
    token: int


def positions_of_caller() -> Tensor | None:
    """The `position_ids` that the model gave to the function of transformers that asks for a mask."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != HOME:
        frame = frame.f_back
    found = None if frame is None else frame.f_locals.get("position_ids")
    return found if isinstance(found, Tensor) else None


class ModelCall(NamedTuple):
    """A model of transformers that is being called.

    Attributes:
        model: The model.
        arguments: Its arguments by their names, without those that are None.
    """

    model: torch.nn.Module
    arguments: dict[str, Any]


def calls_of_models() -> list[ModelCall]:
    """The models of transformers that are being called, from the innermost one to the outermost."""
    from transformers import PreTrainedModel

    found: list[ModelCall] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            about = frame.f_locals
            if isinstance(model := about["self"], PreTrainedModel):
                names = inspect.signature(model.forward).parameters
                given = {**dict(zip(names, about["args"], strict=False)), **about["kwargs"]}
                found.append(ModelCall(model, {name: value for name, value in given.items() if value is not None}))
        frame = frame.f_back
    return found


def merged(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """The arguments of models that hold one another. Those of an outer model come first."""
    return {name: value for call in calls for name, value in call.arguments.items()}


def check_names(names: Iterable[str]) -> None:
    """Checks that no argument gives documents by a name that neither the model nor LongCA reads."""
    for name in names:
        if name not in _READ and _DOCUMENTS.match(name):
            raise RequestError(
                f"the call gives {name}, and neither the model nor LongCA reads documents by this name, so that they "
                "would see each other; give position_ids that start again in each document, cu_seq_lens_q and "
                "cu_seq_lens_k, seq_idx, or an attention_mask that numbers the documents from 1"
            )


def has_numbers(attention_mask: Any) -> bool:
    """Whether an `attention_mask` of two dims has values other than 0 and 1."""
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 2 or attention_mask.dtype == torch.bool:
        return False
    return bool(((attention_mask != 0) & (attention_mask != 1)).any())


def document_starts(given: Mapping[str, Any], rows: int, tokens: int) -> NDArray[np.bool_] | None:
    """Where documents start in `seq_idx`, or in an `attention_mask` that numbers them: [rows, tokens], or None.

    The first token of a row starts a document. Padding belongs to the document before it.
    """
    numbers = {"seq_idx": given.get("seq_idx")}
    if has_numbers(given.get("attention_mask")):
        numbers["attention_mask"] = given["attention_mask"]
    found = [_starts(name, each, rows, tokens) for name, each in numbers.items() if each is not None]
    return np.logical_or.reduce(found) if found else None


def _starts(name: str, given: Any, rows: int, tokens: int) -> NDArray[np.bool_]:
    """Where documents start in the numbers of an argument."""
    if not isinstance(given, Tensor) or tuple(given.shape) not in {(rows, tokens), (1, tokens)}:
        found = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise RequestError(
            f"{name} numbers the documents, as {found}, and the batch has {rows} rows of {tokens} tokens; give "
            f"[{rows}, {tokens}]"
        )
    numbers = np.broadcast_to(given.detach().cpu().numpy(), (rows, tokens))
    if name == "attention_mask":
        if (wrong := numbers[(numbers < 0) | (numbers != np.floor(numbers))]).size:
            raise RequestError(
                f"attention_mask has the value {wrong[0]}, and LongCA takes 0 for padding, and 1 or the number of the "
                "document for other tokens; give these, or a mask of scores as [rows, 1, queries, keys]"
            )
        places = np.where(numbers != 0, np.arange(tokens), 0)
        numbers = np.take_along_axis(numbers, np.maximum.accumulate(places, axis=1), axis=1)
    starts = np.diff(numbers, axis=1, prepend=numbers[:, :1] - 1) != 0
    for row, (mine, at) in enumerate(zip(numbers, starts, strict=True)):
        ids, counts = np.unique(mine[at], return_counts=True)
        if (counts > 1).any():
            raise RequestError(
                f"{name} numbers tokens of row {row} as document {ids[counts > 1][0]}, then others, then the same again"
                "; give each document's tokens side by side, or a mask of your own by using(mask)"
            )
    return starts


def lost_start(positions: Tensor, masks: Sequence[Mask]) -> LostStart | None:
    """The first token whose position does not follow that of the last key that it sees.

    A token that does not see itself is padding and is passed over. After padding between two tokens, the positions may
    count the padding or not.

    Args:
        positions: Integers [tokens], [rows or 1, tokens], or [axes, rows or 1, tokens] of text among images, whose
            axes are time, height and width. Positions of another shape are passed over.
        masks: The mask of each row: tokens × tokens.
    """
    if not 1 <= positions.ndim <= 3 or positions.shape[-1] != masks[0].seqlen_q:
        return None
    numbers = positions.detach().long().cpu().numpy()
    numbers = numbers[(None,) * (3 - numbers.ndim)]
    for row, mask in enumerate(masks):
        if not isinstance(mask, SliceMask):
            continue
        mine, places = numbers[:, row % numbers.shape[1]], np.arange(mask.seqlen_q)
        starts, stops = mask.row_intervals()
        is_shown = ((starts <= places) & (places < stops)).any(0)
        before = np.where(starts < places, np.minimum(stops, places), 0).max(0, initial=0) - 1
        if (mine == mine[0]).all():
            step = mine[0] - mine[0, before]
            is_start = (step != 1) & (step != places - before)
        else:  # axes of an image step back within a document, but never to the document's first position
            is_start = mine.max(0) <= mine[:, is_shown].min(initial=mine.max())
        found = is_shown & (before >= 0) & is_start
        if found.any():
            return LostStart(row, int(found.argmax()))
    return None


def check_positions(positions: Any, masks: Sequence[Mask]) -> None:
    """Checks the positions of a layer whose model makes masks without them. All layers give one tensor."""
    if not isinstance(positions, Tensor):
        return
    state = contents_of(positions), tuple(mask.key for mask in masks)
    if _CHECKED.get(positions) != state:
        if (lost := lost_start(positions, masks)) is not None:
            refuse(lost, "the model makes its masks without position_ids", WITHOUT_POSITIONS)
        _CHECKED[positions] = state


def refuse(lost: LostStart, why: str, what_to_do: str) -> NoReturn:
    """Refuses packed documents that would see each other."""
    raise RequestError(
        f"position_ids of row {lost.row} start again at token {lost.token}, and {why}, so that documents would see "
        f"each other; {what_to_do}"
    )
