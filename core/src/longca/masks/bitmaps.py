"""Bitmaps of kept blocks, packed by `numpy.packbits`, and functions that read them without unpacking them all.

The bits of one head are uint8 [query blocks, bytes]. The bits of several heads are [heads, query blocks, bytes]. The
bits beyond the last key block are 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_DENSE_CELLS

__all__ = ["Bits", "block_edges", "check_bitmap", "check_bits", "most_runs", "seen_tokens", "touched_tiles", "unpacked"]

Bits = NDArray[np.uint8]


def check_bitmap(heads: int, blocks: int) -> None:
    """Refuses a bitmap of more than MAX_DENSE_CELLS entries with a MaskError."""
    if heads * blocks**2 > MAX_DENSE_CELLS:
        raise MaskError(
            f"a bitmap of {heads} heads × {blocks} × {blocks} blocks has more than {MAX_DENSE_CELLS} (2³²) entries; "
            f"take larger blocks or fewer heads"
        )


def check_bits(bits: Bits, rows: int, columns: int) -> Bits:
    """Returns a checked copy of the bits of one or more heads.

    Raises:
        MaskError: They are not uint8 [heads, rows, bytes] of a head or more, or a bit beyond the last column is set.
    """
    expected = (rows, -(-columns // 8))
    if bits.dtype != np.uint8 or bits.ndim != 3 or bits.shape[1:] != expected or not len(bits):
        raise MaskError(
            f"bits are {bits.dtype} {bits.shape}; these bounds need uint8 [heads, {expected[0]}, {expected[1]}]"
        )
    if columns % 8 and (bits[..., -1] & (0xFF >> columns % 8)).any():
        raise MaskError(f"bits beyond the last of {columns} key blocks are set; they must be 0")
    return bits.copy()


def unpacked(bits: Bits, columns: int) -> NDArray[np.bool_]:
    """The booleans of one head: [query blocks, key blocks]."""
    return np.unpackbits(bits, axis=-1, count=columns).astype(np.bool_)


def seen_tokens(bits: Bits, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens in the kept blocks of each row: [heads, query blocks]. The sizes are tokens of each key block."""
    # The table holds, for each byte of a row and each value of that byte, the tokens of the blocks whose bits are set.
    padded = np.pad(sizes, (0, 8 * bits.shape[2] - len(sizes))).reshape(-1, 8)
    values = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.int64)
    tokens, first = (padded @ values.T).ravel(), np.arange(len(padded)) * 256
    return np.stack([tokens[of_head + first].sum(-1) for of_head in bits])


def most_runs(kept: NDArray[np.bool_]) -> tuple[int, int]:
    """Runs of kept blocks in the fullest row and in the fullest column of a head [query blocks, key blocks]."""
    rows, columns = (np.diff(each, axis=1, prepend=False) & each for each in (kept, kept.T))
    return int(rows.sum(1).max(initial=0)), int(columns.sum(1).max(initial=0))


def block_edges(bits: Bits, columns: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each query block and each key block differs from the block before it in any head. The first ones do."""
    q_edges, k_edges = (np.arange(blocks) == 0 for blocks in (bits.shape[1], columns))
    for of_head in bits:
        q_edges[1:] |= (of_head[1:] != of_head[:-1]).any(1)
        if not k_edges.all():
            kept = unpacked(of_head, columns)
            k_edges[1:] |= (kept[:, 1:] != kept[:, :-1]).any(0)
    return q_edges, k_edges


def touched_tiles(bits: Bits, q_spans: NDArray[np.int64], k_spans: NDArray[np.int64]) -> int:
    """Counts the tiles that a head's kept blocks touch. The spans come from `tile_spans`."""
    # One spare row serves spans that reach the last row. Rows are joined as bits, then columns as rows of bits.
    rows = np.bitwise_or.reduceat(np.pad(bits, ((0, 1), (0, 0))), q_spans, axis=0)[::2]
    by_key = np.packbits(np.unpackbits(rows, axis=1).T, axis=1)
    columns = np.bitwise_or.reduceat(np.pad(by_key, ((0, 1), (0, 0))), k_spans, axis=0)[::2]
    return int(np.count_nonzero(np.unpackbits(columns, axis=1)))
