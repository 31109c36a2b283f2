"""The two dynamic patterns of LongCA-bench (arXiv 2510.17896): random block-sparse masks, one for each head.

The "sparsity ratio" of the paper is the kept share. Importing this module registers the patterns.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_DENSE_CELLS
from longca.masks.bitmaps import Bits
from longca.masks.block_sparse import BlockSparseMask
from longca.masks.bounds import kept_count, uniform_bounds
from longca.masks.forms import Form
from longca.masks.patterns import Pattern, register

__all__ = ["check_bitmap"]


def _uniform_block_sparse(q: int, k: int, block: int, kept: float, heads: int, seed: int) -> BlockSparseMask:
    check_bitmap(heads, -(-q // block))
    return _top_blocks(uniform_bounds(q, block), kept, heads, seed)


def _variable_block_sparse(
    q: int, k: int, boundaries: tuple[int, ...], kept: float, heads: int, seed: int
) -> BlockSparseMask:
    check_bitmap(heads, len(boundaries) - 1)
    return _top_blocks(np.array(boundaries), kept, heads, seed)


def check_bitmap(heads: int, blocks: int) -> None:
    """Refuses a bitmap of more than MAX_DENSE_CELLS entries with a MaskError."""
    if heads * blocks**2 > MAX_DENSE_CELLS:
        raise MaskError(
            f"a bitmap of {heads} heads × {blocks} × {blocks} blocks has more than {MAX_DENSE_CELLS} (2³²) entries; "
            f"take larger blocks or fewer heads"
        )


def _top_blocks(bounds: NDArray[np.int64], kept: float, heads: int, seed: int) -> BlockSparseMask:
    """Keeps the ⌊kept·n⌋ (at least one) of n key blocks with the highest random scores, per head and query block."""
    blocks = len(bounds) - 1
    count = kept_count(kept, blocks)
    return BlockSparseMask.drawn(partial(_top_bits, blocks, count, heads, seed), heads, count, bounds)


def _top_bits(n: int, count: int, heads: int, seed: int) -> Bits:
    """The packed bits of the `count` of n key blocks with the highest scores: [heads, n, bytes]."""
    rng = np.random.default_rng(seed)
    bits = np.empty((heads * n, -(-n // 8)), np.uint8)
    rows = max(1, 2**22 // n)  # 32 MiB of scores in one step
    for first in range(0, heads * n, rows):
        scores = rng.random((min(rows, heads * n - first), n))
        best = np.argpartition(scores, n - count, axis=1)[:, n - count :]
        kept_blocks = np.zeros(scores.shape, np.bool_)
        np.put_along_axis(kept_blocks, best, True, axis=1)
        bits[first : first + rows] = np.packbits(kept_blocks, axis=1)
    return bits.reshape(heads, n, -1)


def _block_forms() -> dict[Form, int | None]:
    return {Form.BLOCK_SPARSE: 1, Form.DENSE: 1}


for _pattern in (
    Pattern(
        "uniform_block_sparse",
        "Uniform block sparse",
        "j's block is kept for i's block, per head",
        ("block", "kept", "heads", "seed"),
        _uniform_block_sparse,
        _block_forms(),
        defaults={"heads": 1, "seed": 0},
        per_head=True,
        has_uniform_blocks=True,
    ),
    Pattern(
        "variable_block_sparse",
        "Variable block sparse",
        "the same with blocks of unequal sizes",
        ("boundaries", "kept", "heads", "seed"),
        _variable_block_sparse,
        _block_forms(),
        defaults={"heads": 1, "seed": 0},
        per_head=True,
    ),
):
    register(_pattern)
