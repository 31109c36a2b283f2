"""Forms: the ways in which kernels take a mask, and the conversions of slices to the packed forms.

A form *admits* a mask when the form can express it exactly. Full, causal and window masks are bands over the whole
matrix. A varlen mask consists of documents, and each document is a band. Layers are varlen calls whose results are
merged by lse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longca.masks.intervals import IntervalPieces, ragged
from longca.masks.slices import UNBOUNDED, SliceArray, corner_band, tighten

__all__ = ["Form", "Varlen", "Window", "local_windows", "pack", "pieces_to_slices"]


class Form(StrEnum):
    """How a kernel takes its mask."""

    FULL = "full"
    """Every query sees every key."""
    CAUSAL = "causal"
    """One causal band, aligned bottom-right as in FlashAttention ≥ 2.1."""
    WINDOW = "window"
    """One band, aligned bottom-right. Each of its two sides has a bound or none."""
    VARLEN = "varlen"
    """Documents: pairs of a query range and a key range, in ascending order, all with the same window."""
    LAYERS = "layers"
    """n varlen calls whose outputs are merged by their log-sum-exp."""
    ROW_INTERVALS = "row_intervals"
    """Each query's keys as at most n half-open intervals."""
    COLUMN_INTERVALS = "column_intervals"
    """Each key's queries as at most n half-open intervals."""
    BLOCK_SPARSE = "block_sparse"
    """Per head, a bitmap of kept blocks."""
    DENSE = "dense"
    """The boolean matrix."""


class Window(NamedTuple):
    """Tokens that a query sees on either side of the bottom-right diagonal. None means unbounded."""

    left: int | None
    right: int | None


@dataclass(frozen=True, eq=False)
class Varlen:
    """Packed documents in the form that FlashAttention's varlen functions take.

    Attributes:
        cu_seqlens_q: Bounds of the documents' queries: int32 [documents + 1].
        cu_seqlens_k: Bounds of the documents' keys: int32 [documents + 1].
        window: The window that all documents share, aligned bottom-right in each.
    """

    cu_seqlens_q: NDArray[np.int32]
    cu_seqlens_k: NDArray[np.int32]
    window: Window

    @property
    def max_seqlen_q(self) -> int:
        """Queries of the longest document."""
        return int(np.diff(self.cu_seqlens_q).max(initial=0))

    @property
    def max_seqlen_k(self) -> int:
        """Keys of the longest document."""
        return int(np.diff(self.cu_seqlens_k).max(initial=0))


def pieces_to_slices(pieces: IntervalPieces) -> SliceArray:
    """One tight slice for each affine piece of the row intervals, ordered by rows."""
    q0, q1 = pieces.rows[pieces.segment], pieces.rows[pieces.segment + 1]
    last = q1 - 1 - q0
    return tighten(
        np.stack(
            [
                q0,
                q1,
                pieces.start,
                pieces.stop + pieces.stop_step * last,
                np.where(pieces.start_step == 1, pieces.start - q0, -UNBOUNDED),
                np.where(pieces.stop_step == 1, pieces.stop - 1 - q0, UNBOUNDED),
            ],
            axis=1,
        )
    )


def local_windows(documents: SliceArray) -> tuple[NDArray[np.int64], ...]:
    """Tokens each slice's rows see left and right of its bottom-right diagonal, and which of these bounds bind."""
    _, q1, _, k1, lo, hi = documents.T
    loose_lo, loose_hi = corner_band(documents)
    return (k1 - q1) - lo, hi - (k1 - q1), (lo > loose_lo).astype(np.int64), (hi < loose_hi).astype(np.int64)


def _shared(reach: NDArray[np.int64], binds: NDArray[np.int64]) -> tuple[bool, int | None]:
    """Whether all documents can share one side of a window, and the bound of that side."""
    bounds = np.unique(reach[binds == 1])
    if not len(bounds):
        return True, None
    least = reach[binds == 0].max(initial=0)
    return len(bounds) == 1 and least <= bounds[0], int(bounds[0])


def pack(documents: SliceArray, seqlen_q: int, seqlen_k: int) -> Varlen | None:
    """Packs ordered, disjoint documents into one varlen call. Tokens between them become documents that see nothing."""
    left, right, left_binds, right_binds = local_windows(documents)
    left_ok, left_bound = _shared(left, left_binds)
    right_ok, right_bound = _shared(right, right_binds)
    if not (left_ok and right_ok):
        # A run of one-token documents reads as one diagonal. Split into its documents again, it fits any window.
        diagonal = documents[:, 4] == documents[:, 5]
        units = _split_diagonals(documents, diagonal)
        return pack(units, seqlen_q, seqlen_k) if len(units) > len(documents) else None
    ends = np.array([[seqlen_q, seqlen_q, seqlen_k, seqlen_k, 0, 0]])
    rows = np.concatenate([documents, ends])
    gap_q = rows[:, 0] - np.r_[0, rows[:-1, 1]]
    gap_k = rows[:, 2] - np.r_[0, rows[:-1, 3]]
    none = np.zeros_like(gap_q)
    lengths_q = np.stack([gap_q, none, rows[:, 1] - rows[:, 0]], axis=1).ravel()
    lengths_k = np.stack([none, gap_k, rows[:, 3] - rows[:, 2]], axis=1).ravel()
    kept = (lengths_q > 0) | (lengths_k > 0)
    cu_q, cu_k = (np.r_[0, np.cumsum(x[kept])].astype(np.int32) for x in (lengths_q, lengths_k))
    return Varlen(cu_q, cu_k, Window(left_bound, right_bound))


def _split_diagonals(documents: SliceArray, diagonal: NDArray[np.bool_]) -> SliceArray:
    owner, step = ragged(np.zeros(len(documents), np.int64), np.where(diagonal, documents[:, 1] - documents[:, 0], 1))
    units, mine = documents[owner].copy(), diagonal[owner]
    units[mine, 0] += step[mine]
    units[mine, 2] += step[mine]
    units[mine, 1], units[mine, 3] = units[mine, 0] + 1, units[mine, 2] + 1
    return units
