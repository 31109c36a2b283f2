"""Masks that checks choose among: lengths one past a tile, one token, and rows that see nothing."""

from __future__ import annotations

from functools import cache

import numpy as np

from longca.masks import BlockSparseMask, Mask, Slice, SliceMask, build
from longca_bench.conformance.awkward_blocks import no_blocks

__all__ = ["has_empty_rows", "sparse_rows", "uneven"]


@cache
def uneven() -> tuple[tuple[str, Mask], ...]:
    """Masks of every form whose last tile, of 64, 128 or 256, holds a single token, or a few."""
    named: list[tuple[str, Mask]] = []
    for seqlen in (1, 129, 257):
        named += [(f"{pattern} of {seqlen}", build(pattern, seqlen)) for pattern in ("full", "causal")]
    for seqlen_q, seqlen_k in ((129, 257), (1, 257)):
        for pattern in ("full", "causal"):
            named.append((f"{pattern} {seqlen_q} × {seqlen_k}", build(pattern, seqlen_q, seqlen_k=seqlen_k)))
    named.append(("full 257 × 129", build("full", 257, seqlen_k=129)))
    for seqlen, documents in ((129, (128, 1)), (257, (1, 127, 129))):
        for pattern in ("full_document", "causal_document", "shared_question"):
            named.append((f"{pattern} of {seqlen}", build(pattern, seqlen, documents=documents)))
        for pattern in ("full_sliding_window", "causal_sliding_window"):
            named.append((f"{pattern} of {seqlen}", build(pattern, seqlen, window=65)))
        for heads in (1, 3, 8):
            for block in (64, 128):
                mask = build("uniform_block_sparse", seqlen, block=block, kept=0.7, heads=heads, seed=heads)
                named.append((f"blocks of {block}, {heads} masks, {seqlen}", mask))
            mask = build(
                "variable_block_sparse", seqlen, boundaries=(0, 65, 128, seqlen), kept=0.7, heads=heads, seed=1
            )
            named.append((f"variable blocks, {heads} masks, {seqlen}", mask))
    return tuple(named)


@cache
def sparse_rows() -> tuple[tuple[str, Mask], ...]:
    """Masks with queries that see nothing: the first ones, some between, the last ones."""
    holes = [Slice(0, 60, 0, 90), Slice(120, 203, 50, 203, hi=0)]
    blind = []
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
    """Whether some query of some head sees nothing."""
    return bool((mask.visible_keys() == 0).any())
