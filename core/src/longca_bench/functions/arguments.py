"""The parameters that a function may ask for by name, each with its value for a mask.

A parameter describes the mask of all tokens. Under context parallelism only `attn_mask` and `position_ids` are those of
the rank's own queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from longca.kernels.base import torch_device
from longca.manifests import Problem
from longca.masks import Mask, SliceMask

__all__ = ["ARGUMENTS", "Context", "document_bounds", "is_causal"]


@dataclass(frozen=True)
class Context:
    """The call that a function's parameters describe.

    `batch` is None for packed tensors. `queries` are the positions of a rank's own queries, and None on one device.
    """

    problem: Problem
    batch: int | None = None
    queries: NDArray[np.int64] | None = None
    group: dist.ProcessGroup | None = None

    @property
    def mask(self) -> Mask:
        """The mask of all tokens of a sequence."""
        return self.problem.concrete_mask

    def tensor(self, values: Any, dtype: torch.dtype) -> Tensor:
        """Values as a tensor on the problem's device."""
        return torch.as_tensor(np.ascontiguousarray(values), dtype=dtype, device=torch_device(self.problem.device))

    def bounds(self, *, of_keys: bool) -> NDArray[np.int64]:
        """The bounds of the documents, or of all keys if these are not the queries."""
        return np.array([0, self.mask.seqlen_k]) if of_keys and not self.mask.is_square else document_bounds(self.mask)


def document_bounds(mask: Mask) -> NDArray[np.int64]:
    """The bounds of the mask's documents: [documents + 1]. A mask without documents is one document."""
    documents = mask.factors.get("documents")
    return np.r_[0, np.cumsum(documents)] if documents is not None else np.array([0, mask.seqlen_q])


def is_causal(mask: Mask) -> bool:
    """Whether no query sees a later key. The last query is aligned with the last key."""
    return isinstance(mask, SliceMask) and bool((mask.array[:, 5] <= mask.seqlen_k - mask.seqlen_q).all())


def _positions(mask: Mask) -> NDArray[np.int64]:
    """The position of each query: in its document if no document sees another one, and else in the sequence."""
    tokens, bounds = np.arange(mask.seqlen_q), document_bounds(mask)
    if not (mask.is_square and isinstance(mask, SliceMask)):
        return tokens + mask.seqlen_k - mask.seqlen_q
    q0, q1, k0, k1 = mask.array[:, :4].T
    first, *others = (np.searchsorted(bounds, edge, "right") for edge in (q0, q1 - 1, k0, k1 - 1))
    are_separate = all(np.array_equal(first, other) for other in others)
    return tokens - bounds[np.searchsorted(bounds, tokens, "right") - 1] if are_separate else tokens


def _attn_mask(call: Context) -> Tensor:
    dense = call.mask.dense()
    if dense.ndim == 3:  # one mask for each KV head or query head
        dense = dense.repeat(call.problem.heads_q // len(dense), axis=0)
    return call.tensor(dense if call.queries is None else dense[..., call.queries, :], torch.bool)


def _cu_seqlens(call: Context, *, of_keys: bool = False) -> Tensor:
    return call.tensor(call.bounds(of_keys=of_keys), torch.int32)


def _longest(call: Context, *, of_keys: bool = False) -> int:
    return int(np.diff(call.bounds(of_keys=of_keys)).max(initial=0))


def _position_ids(call: Context) -> Tensor:
    every = _positions(call.mask)
    found = call.tensor(every if call.queries is None else every[call.queries], torch.int64)
    return found if call.batch is None else found.expand(call.batch, -1)


def _window_size(call: Context) -> tuple[int, int]:
    window = call.mask.factors.get("window", -1)
    return window, 0 if is_causal(call.mask) else window


#: The values of the parameters by their names. The page on verifying a function says what each is.
ARGUMENTS: dict[str, Callable[[Context], Any]] = {
    "mask": lambda call: call.mask,
    "attn_mask": _attn_mask,
    "cu_seqlens": _cu_seqlens,
    "cu_seqlens_q": _cu_seqlens,
    "cu_seqlens_k": lambda call: _cu_seqlens(call, of_keys=True),
    "max_seqlen": _longest,
    "max_seqlen_q": _longest,
    "max_seqlen_k": lambda call: _longest(call, of_keys=True),
    "position_ids": _position_ids,
    "is_causal": lambda call: is_causal(call.mask),
    "causal": lambda call: is_causal(call.mask),
    "scale": lambda call: call.problem.scale,
    "softmax_scale": lambda call: call.problem.scale,
    "softcap": lambda call: call.problem.softcap or 0.0,
    "window": lambda call: call.mask.factors.get("window"),
    "window_size": _window_size,
    "enable_gqa": lambda call: call.problem.is_gqa,
    "group": lambda call: call.group,
}
