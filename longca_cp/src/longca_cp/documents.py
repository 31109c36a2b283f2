"""Documents of a mask: where they begin and end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.errors import UnsupportedError
from longca.masks import Mask, SliceMask

__all__ = ["document_lengths"]


def document_lengths(mask: Mask) -> NDArray[np.int64]:
    """The lengths of a mask's documents, in order: int64 [documents].

    They are the mask's factor `documents` where it was built with one. Else they are derived: a document is a stretch
    of tokens that see, and are seen by, none outside it.

    Raises:
        UnsupportedError: It was not built of documents, and does not fall into any.
    """
    if "documents" in mask.factors:
        return np.array(mask.factors["documents"], np.int64)
    if isinstance(mask, SliceMask):
        bounds = _bounds(mask)
        if len(bounds) > 2:
            return np.diff(bounds)
    raise UnsupportedError(
        f"this {mask.label} has no documents to place tokens within. Place them by contiguous, zigzag or balanced."
    )


def _bounds(mask: SliceMask) -> NDArray[np.int64]:
    """Where documents begin and end: between tokens that no slice has on both sides of it."""
    q0, q1, k0, k1 = mask.array.T[:4]
    first, last = np.minimum(q0, k0), np.maximum(q1, k1)
    order = np.argsort(first, kind="stable")
    first, reach = first[order], np.maximum.accumulate(last[order])
    apart = first[1:] >= reach[:-1]
    # Stretches of tokens that neither see nor are seen lie between the others, and are documents too.
    return np.unique(np.r_[0, first[1:][apart], reach[:-1][apart], first[:1], reach[-1:], mask.seqlen_q])
