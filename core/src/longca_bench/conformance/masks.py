"""Masks on which kernels often fail: lengths that fill no tile, documents of one token, queries that see no key.

| set | masks |
|---|---|
| `small_masks` | every form, short enough for any device |
| `long_masks`, `long_blocks` | many tiles, for GPUs: the kernel's pipeline runs, skips tiles and starts again |
| `uneven` | the last tile has one token, or some |
| `sparse_rows` | some queries see no key |
| `block_masks` | rows with no block, one block or all, and a few rows with most of the work |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longca.masks import PATTERNS, BlockSparseMask, Mask, Slice, SliceMask, build, sample
from longca.masks.bounds import check_bounds, uniform_bounds

__all__ = [
    "LONG",
    "SEQLEN",
    "block_masks",
    "has_empty_rows",
    "long_blocks",
    "long_masks",
    "no_blocks",
    "random_blocks",
    "skewed_blocks",
    "small_masks",
    "sparse_rows",
    "static_masks",
    "uneven",
]

SEQLEN = 203  # prime, and more than one tile of 128
LONG = 1103  # prime, and more than eight tiles of 128
_DOCUMENTS = (64, 1, 1, 77, 59, 1)
_LONG_DOCUMENTS = (389, 128, 1, 300, 284, 1)
_BLOCKS, _LONG_BLOCKS = (16, 64, 128), (64, 128)
_BOUNDARIES = (0, 3, 64, 65, 130, SEQLEN)
_LONG_BOUNDARIES = (0, 1, 130, 131, 190, 333, 397, 400, 528, 656, 657, 900, 917, 1100, LONG)

Labelled = tuple[str, Mask]


def static_masks(seqlen: int, **factors: Any) -> list[Labelled]:
    """A mask of each static pattern, with its name. A factor is for the patterns that have it; others are drawn."""
    patterns = [pattern for pattern in PATTERNS.values() if not pattern.per_head]
    given = {kind.name: {name: factors[name] for name in kind.factors if name in factors} for kind in patterns}
    return [(name, sample(name, seqlen, **chosen)) for name, chosen in given.items()]


@cache
def small_masks(blocks: tuple[int, ...] = _BLOCKS) -> tuple[Labelled, ...]:
    """Small masks of every form, each with its label. `blocks` are the sizes of the uniform blocks."""
    return (
        *static_masks(SEQLEN, documents=_DOCUMENTS, window=40, block=16, prefix=50, global_tokens=9),
        *_unequal(("full", "causal"), (77, SEQLEN)),
        ("causal 203 × 77 (empty rows)", build("causal", SEQLEN, seqlen_k=77)),
        ("rows that see nothing", SliceMask([Slice(0, 60, 0, 90), Slice(120, 203, 50, 203, hi=0)], SEQLEN, SEQLEN)),
        ("one token", build("full", 1)),
        *block_masks(SEQLEN, blocks, _BOUNDARIES),
    )


@cache
def long_masks() -> tuple[Labelled, ...]:
    """Each static pattern once over many tiles, and some with unequal numbers of queries and keys."""
    static = static_masks(LONG, documents=_LONG_DOCUMENTS, window=150, block=100, prefix=200, global_tokens=70)
    whole = build("block_causal_document", 1024, documents=(384, 640), block=128)
    short = build("block_causal_document", LONG, documents=_LONG_DOCUMENTS, block=2)  # the most layers: eight
    return (
        *((f"{name} of {LONG}", mask) for name, mask in static),
        ("block_causal_document of whole tiles", whole),
        ("block_causal_document of short blocks", short),
        *_unequal(("full", "causal"), (389, LONG), (LONG, 389)),
    )


@cache
def long_blocks(blocks: tuple[int, ...] = _LONG_BLOCKS) -> tuple[Labelled, ...]:
    """Block-sparse masks over many tiles: equally full rows, and skewed rows."""
    kinds = {f"blocks of {block}": uniform_bounds(LONG, block) for block in blocks}
    kinds["variable blocks"] = check_bounds(_LONG_BOUNDARIES, "variable")
    named: list[Labelled] = []
    for kind, bounds in kinds.items():
        named += [(f"{kind} of {LONG}, {heads} masks", random_blocks(bounds, heads)) for heads in (1, 8)]
        named += [(f"skewed {kind} of {LONG}, {heads} masks", skewed_blocks(bounds, heads)) for heads in (2, 3)]
    return tuple(named)


@cache
def uneven() -> tuple[Labelled, ...]:
    """Masks of every form whose last tile of 64, 128 or 256 has one token (129), 7 (263) or 63 (319)."""
    named: list[Labelled] = []
    for seqlen in (1, 129, 263, 319):
        named += [(f"{pattern} of {seqlen}", build(pattern, seqlen)) for pattern in ("full", "causal")]
    named += _unequal(("full", "causal"), (129, 263), (1, 319))
    named += _unequal(("full",), (319, 129))
    for seqlen, documents in ((129, (128, 1)), (263, (1, 127, 135)), (319, (65, 7, 247))):
        for pattern in ("full_document", "causal_document", "shared_question"):
            named.append((f"{pattern} of {seqlen}", build(pattern, seqlen, documents=documents)))
        for pattern in ("full_sliding_window", "causal_sliding_window"):
            named.append((f"{pattern} of {seqlen}", build(pattern, seqlen, window=65)))
        for heads in (1, 3, 8):
            drawn: dict[str, Any] = {"kept": 0.7, "heads": heads, "seed": heads}
            for block in (64, 128):
                mask = build("uniform_block_sparse", seqlen, block=block, **drawn)
                named.append((f"blocks of {block}, {heads} masks, {seqlen}", mask))
            mask = build("variable_block_sparse", seqlen, boundaries=(0, 65, 128, seqlen), **drawn)
            named.append((f"variable blocks, {heads} masks, {seqlen}", mask))
    return tuple(named)


@cache
def sparse_rows() -> tuple[Labelled, ...]:
    """Masks with queries that see no key: the first queries, some in the middle, the last queries."""
    holes = [Slice(0, 60, 0, 90), Slice(120, 203, 50, 203, hi=0)]
    blind: list[Labelled] = []
    for kind, bounds in (("64", (0, 64, 128, 192, 203)), ("128", (0, 128, 203)), ("other sizes", (0, 3, 66, 67, 203))):
        kept = np.ones((len(bounds) - 1, len(bounds) - 1), np.bool_)
        kept[::2] = False
        for heads in (1, 3, 8):
            mask = BlockSparseMask(kept[None].repeat(heads, axis=0), bounds, bounds)
            blind.append((f"every other block of {kind} sees nothing, {heads} masks", mask))
        blind.append((f"no block of {kind} sees anything, 3 masks", no_blocks(np.array(bounds), 3)))
    return (
        ("causal 203 × 77", build("causal", 203, seqlen_k=77)),
        ("a hole between", SliceMask(holes, 203, 203)),
        ("the last 74 queries see nothing", SliceMask([Slice(0, 129, 0, 203)], 203, 203)),
        ("nothing at all", SliceMask([], 129, 129)),
        *blind,
    )


def has_empty_rows(mask: Mask) -> bool:
    """Whether some query of some head sees no key."""
    return bool((mask.visible_keys() == 0).any())


def _unequal(patterns: Iterable[str], *lengths: tuple[int, int]) -> list[Labelled]:
    """Patterns with unequal numbers of queries and keys."""
    return [
        (f"{pattern} {seqlen_q} × {seqlen_k}", build(pattern, seqlen_q, seqlen_k=seqlen_k))
        for seqlen_q, seqlen_k in lengths
        for pattern in patterns
    ]


def block_masks(seqlen: int, blocks: Sequence[int], boundaries: Sequence[int]) -> Iterator[tuple[str, Mask]]:
    """Labelled block-sparse masks of every kind: uniform blocks of each size, and variable blocks."""
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
