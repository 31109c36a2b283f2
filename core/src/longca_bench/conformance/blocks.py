"""Block-sparse masks on which kernels often fail: rows with no block, one block or all, and most work in a few rows.

The query heads of a group may share a mask or not. So there are masks of one head, of two KV heads, and of every query
head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from longca.masks import BlockSparseMask, Mask
from longca.masks.bounds import uniform_bounds

__all__ = ["block_masks", "no_blocks", "random_blocks", "skewed_blocks"]


def block_masks(seqlen: int, blocks: Sequence[int], boundaries: Sequence[int]) -> Iterator[tuple[str, Mask]]:
    """Labelled masks of every kind.

    Args:
        seqlen: Tokens.
        blocks: Block sizes of the uniform masks.
        boundaries: Block bounds of the variable masks.
    """
    for block in blocks:
        bounds, size = uniform_bounds(seqlen, block), f"blocks of {block}"
        n = len(bounds) - 1
        yield from _drawn(size, bounds)
        for heads in (3, 8):
            chosen = np.random.default_rng(heads).integers(n, size=(heads, n, 1))
            yield f"one block of {block} a row, {heads} masks", BlockSparseMask(chosen == np.arange(n), bounds, bounds)
            yield f"no block of {block}, {heads} masks", no_blocks(bounds, heads)
        yield f"every block of {block}, 3 masks", BlockSparseMask(np.ones((3, n, n), np.bool_), bounds, bounds)
        for heads, seqlen_q, seqlen_k in ((1, 77, seqlen), (8, seqlen, 77)):
            cut = skewed_blocks(bounds, heads).cut([(0, seqlen_q)], [(0, seqlen_k)])
            yield f"skewed {size}, {heads} masks, {seqlen_q} × {seqlen_k}", cut
    yield from _drawn("variable blocks", np.array(boundaries))


def _drawn(kind: str, bounds: NDArray[np.int64]) -> Iterator[tuple[str, Mask]]:
    for heads in (1, 3, 8):
        yield f"{kind}, {heads} masks", random_blocks(bounds, heads)
    for heads in (1, 2, 3, 8):
        yield f"skewed {kind}, {heads} masks", skewed_blocks(bounds, heads)


def random_blocks(bounds: NDArray[np.int64], heads: int, kept: float = 0.4) -> BlockSparseMask:
    """Equally many random blocks in every row, at least one. The dynamic patterns draw blocks in this way."""
    n = len(bounds) - 1
    scores = np.random.default_rng(heads).random((heads, n, n))
    return BlockSparseMask(scores.argsort(-1).argsort(-1) < max(1, int(kept * n)), bounds, bounds)


def skewed_blocks(bounds: NDArray[np.int64], heads: int) -> BlockSparseMask:
    """A few rows see many blocks and most rows see few.

    One row sees all blocks, one row none, and one row a single block. These are other rows in each head. Half of the
    rows see the same block, whose keys have most of the gradients' work.
    """
    n, rng = len(bounds) - 1, np.random.default_rng(heads)
    kept = rng.random((heads, n, n)) < rng.random((heads, n, 1)) ** 4
    kept[:, ::2, n // 3] = True
    kept[:, 0] = True
    kept[:, n // 2] = False
    kept[:, -1] = np.arange(n) == n - 1
    turned = np.stack([np.roll(bitmap, head, axis=0) for head, bitmap in enumerate(kept)])
    return BlockSparseMask(turned, bounds, bounds)


def no_blocks(bounds: NDArray[np.int64], heads: int) -> BlockSparseMask:
    """A mask in which no query sees a key."""
    return BlockSparseMask(np.zeros((heads, len(bounds) - 1, len(bounds) - 1), np.bool_), bounds, bounds)
