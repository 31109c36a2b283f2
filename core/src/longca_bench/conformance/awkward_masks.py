"""Masks that kernels trip over: lengths that fill no tile, documents of one token, queries that see nothing.

Small ones of every form for every device, and for GPUs longer ones of each static pattern and of blocks, on which a
kernel's pipeline runs over many tiles, skips some and starts again at others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from longca.masks import Mask, Slice, SliceMask, build
from longca.masks.bounds import check_bounds, uniform_bounds
from longca_bench.conformance.awkward_blocks import awkward_blocks, random_blocks, skewed_blocks

__all__ = ["LONG", "SEQLEN", "awkward_masks", "long_blocks", "long_masks"]

SEQLEN = 203  # prime, and more than one tile of 128
LONG = 1103  # prime, and more than eight tiles of 128
_DOCUMENTS = (1, 64, 1, 1, 77, 59)
_LONG_DOCUMENTS = (1, 389, 128, 1, 300, 284)
_BLOCKS, _LONG_BLOCKS = (16, 64, 128), (64, 128)
_BOUNDARIES = (0, 3, 64, 65, 130, SEQLEN)
_LONG_BOUNDARIES = (0, 1, 130, 131, 190, 333, 397, 400, 528, 656, 657, 900, 917, 1100, LONG)


@cache
def awkward_masks(blocks: tuple[int, ...] = _BLOCKS) -> tuple[tuple[str, Mask], ...]:
    """Small masks of every form, each with its label.

    Args:
        blocks: Block sizes of the uniform block-sparse ones.
    """
    s, documents = SEQLEN, _DOCUMENTS
    named: list[tuple[str, Mask]] = [
        ("full", build("full", s)),
        ("full 77 × 203", build("full", 77, seqlen_k=s)),
        ("causal", build("causal", s)),
        ("causal 77 × 203", build("causal", 77, seqlen_k=s)),
        ("causal 203 × 77 (empty rows)", build("causal", s, seqlen_k=77)),
        ("full_sliding_window", build("full_sliding_window", s, window=40)),
        ("causal_sliding_window", build("causal_sliding_window", s, window=40)),
        ("full_document", build("full_document", s, documents=documents)),
        ("causal_document", build("causal_document", s, documents=documents)),
        ("block_causal_document", build("block_causal_document", s, documents=documents, block=16)),
        ("prefix_lm_causal", build("prefix_lm_causal", s, prefix=70)),
        ("prefix_lm_document", build("prefix_lm_document", s, documents=documents, prefix=20)),
        ("shared_question", build("shared_question", s, documents=documents[1:] + documents[:1])),
        ("global_sliding_window", build("global_sliding_window", s, window=30, global_tokens=9)),
        ("causal_blockwise", build("causal_blockwise", s, documents=documents)),
        ("rows that see nothing", SliceMask([Slice(0, 60, 0, 90), Slice(120, s, 50, s, hi=0)], s, s)),
        ("one token", build("full", 1)),
    ]
    named += awkward_blocks(s, blocks, _BOUNDARIES)
    return tuple(named)


@cache
def long_masks() -> tuple[tuple[str, Mask], ...]:
    """Each static pattern once over many tiles, and what queries and keys of unlike number make of some."""
    s, documents = LONG, _LONG_DOCUMENTS
    patterns: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {},
        "full_sliding_window": {"window": 150},
        "causal_sliding_window": {"window": 150},
        "full_document": {"documents": documents},
        "causal_document": {"documents": documents},
        "block_causal_document": {"documents": documents, "block": 100},
        "prefix_lm_causal": {"prefix": 450},
        "prefix_lm_document": {"documents": documents, "prefix": 200},
        "shared_question": {"documents": documents[1:] + documents[:1]},
        "global_sliding_window": {"window": 140, "global_tokens": 70},
        "causal_blockwise": {"documents": documents},
    }
    named = [(f"{name} of {s}", build(name, s, **factors)) for name, factors in patterns.items()]
    whole = build("block_causal_document", 1024, documents=(384, 640), block=128)
    named.append(("block_causal_document of whole tiles", whole))
    for pattern in ("full", "causal"):
        for seqlen_q, seqlen_k in ((389, s), (s, 389)):
            named.append((f"{pattern} {seqlen_q} × {seqlen_k}", build(pattern, seqlen_q, seqlen_k=seqlen_k)))
    return tuple(named)


@cache
def long_blocks(blocks: tuple[int, ...] = _LONG_BLOCKS) -> tuple[tuple[str, Mask], ...]:
    """Block-sparse masks over many tiles: some as random as the patterns, some skewed.

    Args:
        blocks: Block sizes of the uniform ones.
    """
    kinds = {f"blocks of {block}": uniform_bounds(LONG, block) for block in blocks}
    kinds["variable blocks"] = check_bounds(_LONG_BOUNDARIES, "variable")
    named: list[tuple[str, Mask]] = []
    for kind, bounds in kinds.items():
        named += [(f"{kind} of {LONG}, {heads} masks", random_blocks(bounds, heads)) for heads in (1, 8)]
        named += [(f"skewed {kind} of {LONG}, {heads} masks", skewed_blocks(bounds, heads)) for heads in (2, 3)]
    return tuple(named)
