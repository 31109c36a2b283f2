"""Converts a mask's documents to cuDNN's terms.

cuDNN takes documents as (first token, length) pairs. They need not be adjacent, and cuDNN computes nothing outside
them. So tokens that see nothing are left out beforehand: documents without keys, and the first queries of documents
with more queries than keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from longca.masks import Form, SliceMask, Varlen, Window

__all__ = ["Documents", "band", "bucket", "documents_of"]


def band(window: Window) -> tuple[int | None, int | None]:
    """A window as cuDNN's left and right bounds of the diagonal band. None means unbounded.

    Query i has its diagonal at key d and sees keys d − left < j ≤ d + right. So the left bound counts the diagonal, and
    the right bound does not.
    """
    return (None if window.left is None else window.left + 1), window.right


def bucket(size: int, least: int) -> int:
    """Rounds a size up to 2ⁿ or 3·2ⁿ, at most by half, so that few different sizes remain."""
    if size <= least:
        return least
    step = 1 << max(0, (size - 1).bit_length() - 2)
    return -(-size // step) * step


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents in which every query sees a key.

    Attributes:
        start_q: First query of each document: int64 [documents].
        length_q: Number of queries of each document, at least 1: int64 [documents].
        start_k: First key of each document: int64 [documents].
        length_k: Number of keys of each document, at least 1: int64 [documents].
        window: The window that all documents share, aligned to the last query and key of each.
    """

    start_q: NDArray[np.int64]
    length_q: NDArray[np.int64]
    start_k: NDArray[np.int64]
    length_k: NDArray[np.int64]
    window: Window

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.start_q)

    @property
    def are_square(self) -> bool:
        """Whether each document has as many queries as keys, so that its diagonal runs from corner to corner."""
        return bool((self.length_q == self.length_k).all())

    @property
    def are_one_dense(self) -> bool:
        """Whether a dense graph takes them: one document of several pairs, with Sq ≤ Sk if it has a band."""
        if self.count != 1:
            return False
        queries, keys = int(self.length_q[0]), int(self.length_k[0])
        return (self.window == Window(None, None) or queries <= keys) and max(queries, keys) > 1

    def uncovered_q(self, seqlen_q: int) -> NDArray[np.int64]:
        """Queries outside all documents. They see nothing."""
        return _uncovered(self.start_q, self.length_q, seqlen_q)

    def uncovered_k(self, seqlen_k: int) -> NDArray[np.int64]:
        """Keys outside all documents. No query sees them."""
        return _uncovered(self.start_k, self.length_k, seqlen_k)


def documents_of(mask: SliceMask, form: Form) -> Documents:
    """The documents of a mask in a form that it admits. Forms other than varlen have one document."""
    lengths = np.array([0, mask.seqlen_q], np.int32), np.array([0, mask.seqlen_k], np.int32)
    match form:
        case Form.FULL:
            varlen = Varlen(*lengths, Window(None, None))
        case Form.CAUSAL:
            varlen = Varlen(*lengths, Window(None, 0))
        case Form.WINDOW:
            assert mask.window is not None, "the mask admits the form"
            varlen = Varlen(*lengths, mask.window)
        case _:
            assert mask.varlen is not None, "the mask admits the form"
            varlen = mask.varlen
    return _seeing(varlen)


def _seeing(varlen: Varlen) -> Documents:
    bounds_q, bounds_k = (x.astype(np.int64) for x in (varlen.cu_seqlens_q, varlen.cu_seqlens_k))
    length_q, length_k = np.diff(bounds_q), np.diff(bounds_k)
    blind = np.zeros_like(length_q)
    if varlen.window.right is not None:
        blind = np.clip(length_q - length_k - varlen.window.right, 0, length_q)
    kept = (length_q > blind) & (length_k > 0)
    return Documents(
        (bounds_q[:-1] + blind)[kept], (length_q - blind)[kept], bounds_k[:-1][kept], length_k[kept], varlen.window
    )


def _uncovered(start: NDArray[np.int64], length: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    change = np.zeros(total + 1, np.int64)
    np.add.at(change, start, 1)
    np.add.at(change, start + length, -1)
    return np.flatnonzero(np.cumsum(change[:-1]) == 0)
