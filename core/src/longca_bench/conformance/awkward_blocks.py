"""Block-sparse masks that kernels trip over: rows that see nothing, one block or all, and most of the work in few.

The query heads of a group may share a mask or not, so there are masks of one head, of two KV heads, and of every query
head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from longca.masks import BlockSparseMask, Mask
from longca.masks.bounds import uniform_bounds

__all__ = ["awkward_blocks", "no_blocks", "random_blocks", "skewed_blocks"]

Bitmap = NDArray[np.bool_]


def awkward_blocks(seqlen: int, blocks: Sequence[int], boundaries: Sequence[int]) -> Iterator[tuple[str, Mask]]:
    """Labelled masks of every kind.

    Args:
        seqlen: Tokens.
        blocks: Block sizes of the uniform ones.
        boundaries: Bounds of the blocks of the others.
    """
    for block in blocks:
        bounds, size = uniform_bounds(seqlen, block), f"blocks of {block}"
        yield from _drawn(size, bounds)
        for heads in (3, 8):
            yield f"one block of {block} a row, {heads} masks", _mask(_one_a_row(len(bounds) - 1, heads), bounds)
            yield f"no block of {block}, {heads} masks", no_blocks(bounds, heads)
        yield (
            f"every block of {block}, 3 masks",
            _mask(np.ones((3, len(bounds) - 1, len(bounds) - 1), np.bool_), bounds),
        )
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
    """As many blocks in every row, at least one, as the patterns have it."""
    n = len(bounds) - 1
    scores = np.random.default_rng(heads).random((heads, n, n))
    return _mask(scores.argsort(-1).argsort(-1) < max(1, int(kept * n)), bounds)


def skewed_blocks(bounds: NDArray[np.int64], heads: int) -> BlockSparseMask:
    """Few rows see much and most little; one sees all, one nothing and one a single block, another in each head.

    Half of the rows see one block that is the same for all: its keys have most of the gradients' work.
    """
    n, rng = len(bounds) - 1, np.random.default_rng(heads)
    kept = rng.random((heads, n, n)) < rng.random((heads, n, 1)) ** 4
    kept[:, ::2, n // 3] = True
    kept[:, 0] = True
    kept[:, n // 2] = False
    kept[:, -1] = np.arange(n) == n - 1
    return _mask(np.stack([np.roll(bitmap, head, axis=0) for head, bitmap in enumerate(kept)]), bounds)


def no_blocks(bounds: NDArray[np.int64], heads: int) -> BlockSparseMask:
    """Nobody sees anything."""
    return _mask(np.zeros((heads, len(bounds) - 1, len(bounds) - 1), np.bool_), bounds)


def _one_a_row(n: int, heads: int) -> Bitmap:
    chosen = np.random.default_rng(heads).integers(n, size=(heads, n, 1))
    return np.asarray(chosen == np.arange(n))


def _mask(kept: Bitmap, bounds: NDArray[np.int64]) -> BlockSparseMask:
    return BlockSparseMask(kept, bounds, bounds)
