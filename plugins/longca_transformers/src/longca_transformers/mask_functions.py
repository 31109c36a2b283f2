"""Mask functions: the mask that a mask function of transformers means, without evaluating it for every pair.

transformers composes a mask from functions of indices, such as `and_masks(sliding_window_overlay(w),
causal_mask_function)`. A function is known by its name in `transformers.masking_utils`, and its arguments by its
closure. The result is compared with the function itself at the edges of some rows (`agrees`). A function that is not
known, or that disagrees, is evaluated (`evaluated`).

Source: transformers/masking_utils.py, 4.56 to 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.errors import UnsupportedError
from longca.masks import Slice, SliceMask, build, intersection, pack, union
from longca.masks.conversions import from_rows

#: From the indices of a batch, a head, a query and a key to whether the query sees the key.
MaskFunction = Callable[..., Tensor]

#: The module of transformers whose functions make masks.
HOME = "transformers.masking_utils"
#: Functions whose value depends only on the distance between a query and a key, and those that combine functions.
SHIFTS = frozenset(
    {
        "causal_mask_function",
        "bidirectional_mask_function",
        "sliding_window_overlay",
        "sliding_window_bidirectional_overlay",
        "and_masks",
        "or_masks",
    }
)
#: Rows whose edges are compared.
_ROWS = 64
#: The most pairs of a mask that are evaluated, and the most of them at a time: 64 K tokens, and 1 K rows of these.
_MOST, _AT_ONCE = 2**32, 2**26
#: The most slices of a mask that was evaluated.
_SLICES = 2**16


class UnknownFunctionError(Exception):
    """A mask function has another name or form than those that are known."""


def known(function: MaskFunction, batch: int, tokens: int) -> SliceMask:
    """The mask of a function that is known by its name, tokens × tokens, for a row of the batch."""
    name, closure = name_of(function), closure_of(function)
    match name:
        case "causal_mask_function":
            return build("causal", tokens).head(0)
        case "bidirectional_mask_function":
            return build("full", tokens).head(0)
        case "sliding_window_overlay":
            return _band(tokens, 1 - int(closure["sliding_window"]), None)
        case "sliding_window_bidirectional_overlay":
            return _band(tokens, -int(closure["sliding_window"]), int(closure["sliding_window"]))
        case "padding_mask_function":
            return padding(_row(closure["padding_mask"], batch), tokens, tokens)
        case "packed_sequence_mask_function":
            return of_documents(_row(closure["packed_sequence_mask"], batch), tokens)
        case "chunked_overlay":
            left = int(_row(closure["left_padding"], batch))
            return of_documents((np.arange(tokens) - left) // int(closure["chunk_size"]), tokens)
        case "blockwise_overlay":
            return of_documents(_row(closure["block_sequence_ids"], batch), tokens, least=0)
        case "or_masks":
            return union(*(known(part, batch, tokens) for part in closure["mask_functions"]))
        case "and_masks":
            return _all_of(closure["mask_functions"], batch, tokens)
    raise UnknownFunctionError(name)


def name_of(function: MaskFunction) -> str:
    """The name of a function or of its maker in transformers' module of masks, or its own full name."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    home = getattr(function, "__module__", "")
    return name.partition(".<locals>")[0] if home == HOME else f"{home}.{name}"


def has_documents(function: MaskFunction) -> bool:
    """Whether a function holds the boundaries of several packed documents."""
    packed = [part for part in walk(function) if name_of(part) == "packed_sequence_mask_function"]
    return any(bool(closure_of(part)["packed_sequence_mask"].any()) for part in packed)


def closure_of(function: MaskFunction) -> dict[str, Any]:
    """The arguments that a function has closed over, by their names."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True)) if code and cells else {}


def walk(function: MaskFunction) -> Iterator[MaskFunction]:
    """A function and all that it combines or changes."""
    yield function
    closure = closure_of(function)
    inner = [closure["mask_function"]] if "mask_function" in closure else []
    for part in closure.get("mask_functions", inner):
        yield from walk(part)


def padding(shown: NDArray[Any], queries: int, keys: int) -> SliceMask:
    """The mask that shows every query the keys that are marked. Keys behind the last mark are hidden."""
    edges = np.flatnonzero(np.diff(np.pad(shown[:keys].astype(np.int8), 1))).reshape(-1, 2)
    return SliceMask([Slice(0, queries, int(start), int(stop)) for start, stop in edges], queries, keys)


def agrees(mask: SliceMask, function: MaskFunction, batch: int, device: torch.device) -> bool:
    """Whether a function shows the first and the last key of some intervals of a mask, and hides their neighbours."""
    starts, stops = mask.row_intervals()
    rows = np.unique(np.linspace(0, mask.seqlen_q - 1, _ROWS).astype(np.int64))
    keys = np.stack([starts[:, rows] - 1, starts[:, rows], stops[:, rows] - 1, stops[:, rows]]).clip(0)
    keys = np.concatenate([keys.reshape(-1, len(rows)), [rows, np.minimum(rows + 1, mask.seqlen_k - 1)]])
    keys = np.minimum(keys, mask.seqlen_k - 1)
    shown = ((starts[:, None, rows] <= keys) & (keys < stops[:, None, rows])).any(0)
    q, k = (torch.from_numpy(x).to(device) for x in (np.broadcast_to(rows, keys.shape).copy(), keys))
    said = function(torch.tensor(batch, device=device), torch.tensor(0, device=device), q, k)
    return bool(np.array_equal(said.expand(keys.shape).cpu().numpy(), shown))


def evaluated(function: MaskFunction, batch: int, queries: range, keys: range, device: torch.device) -> SliceMask:
    """The mask of any function for a row of the batch, evaluated for all pairs on a device under `torch.vmap`."""
    if len(queries) * len(keys) > _MOST:
        raise UnsupportedError(
            f"the mask function {name_of(function)} is not known, and evaluating it for {len(queries)} × {len(keys)} "
            "pairs would take too long. Give the mask of the batch by longca_transformers.using(mask)"
        )
    over_keys = torch.vmap(function, in_dims=(None, None, None, 0))
    over_pairs = torch.vmap(over_keys, in_dims=(None, None, 0, None))
    row, head = torch.tensor(batch, device=device), torch.tensor(0, device=device)
    columns = torch.arange(keys.start, keys.stop, device=device)

    def parts() -> Iterator[NDArray[np.bool_]]:
        step = max(1, _AT_ONCE // max(1, len(keys)))
        for top in range(queries.start, queries.stop, step):
            rows = torch.arange(top, min(top + step, queries.stop), device=device)
            yield over_pairs(row, head, rows, columns).expand(len(rows), len(keys)).cpu().numpy()

    return from_rows(parts(), len(queries), len(keys), _SLICES)


def _all_of(functions: tuple[MaskFunction, ...], batch: int, tokens: int) -> SliceMask:
    """The intersection of functions. Positions that start again in each packed sequence need its boundaries."""
    names = [name_of(function) for function in functions]
    if "remap_positions_for_packed_sequence" not in names:
        return intersection(*(known(function, batch, tokens) for function in functions))
    if sorted(names) != ["packed_sequence_mask_function", "remap_positions_for_packed_sequence"]:
        raise UnknownFunctionError("remap_positions_for_packed_sequence")
    packed = closure_of(functions[names.index("packed_sequence_mask_function")])
    remapped = closure_of(functions[names.index("remap_positions_for_packed_sequence")])
    inner, ids = remapped["mask_function"], _row(packed["packed_sequence_mask"], batch)
    if {name_of(part) for part in walk(inner)} <= SHIFTS:
        return intersection(of_documents(ids, tokens), known(inner, batch, tokens))
    positions = _row(remapped["position_ids"], batch)[:tokens]
    bounds = np.r_[0, np.flatnonzero(np.diff(ids[:tokens])) + 1, tokens]
    whole = known(inner, batch, int(positions.max()) + 1)
    spans = [[(int(positions[i]), int(positions[j - 1]) + 1)] for i, j in pairwise(bounds)]
    return pack([whole.cut(span, span) for span in spans]).head(0)


def _band(tokens: int, lo: int, hi: int | None) -> SliceMask:
    upper = tokens if hi is None else hi
    return SliceMask([Slice(0, tokens, 0, tokens, lo, upper)], tokens, tokens)


def of_documents(ids: NDArray[Any], tokens: int, least: int | None = None) -> SliceMask:
    """The mask of pairs with equal ids, of which those below `least` see nothing."""
    ids = ids[:tokens]
    bounds = np.r_[0, np.flatnonzero(np.diff(ids)) + 1, tokens]
    first = ids[bounds[:-1]]
    taken = np.ones(len(first), bool) if least is None else first >= least
    if len(np.unique(first[taken])) < taken.sum():
        raise UnknownFunctionError("a group of tokens that are no neighbours")
    spans = zip(bounds[:-1][taken].tolist(), bounds[1:][taken].tolist(), strict=True)
    return SliceMask([Slice(i, j, i, j) for i, j in spans], tokens, tokens)


def _row(values: Any, batch: int) -> NDArray[Any]:
    """One row of a tensor of the batch, on the host. A tensor of one row serves all."""
    if not isinstance(values, Tensor):
        raise UnknownFunctionError("an argument that is no tensor")
    row: NDArray[Any] = values[batch if len(values) > 1 else 0].detach().cpu().numpy()
    return row
