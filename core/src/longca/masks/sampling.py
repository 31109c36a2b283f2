"""Sampling: masks with factors drawn in the same way as in the released code of LongCA-bench.

Only uniform draws of numpy's PCG64 are used, so a seed gives the same mask with every version of numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from longca.limits import check_pieces
from longca.masks.bitmaps import check_bitmap
from longca.masks.lengths import LengthDistribution, resolve_lengths
from longca.masks.mask import Mask, check_seqlen
from longca.masks.patterns import FACTORS, build, get_pattern

__all__ = ["draws_lengths", "sample"]

#: Window of the sliding-window patterns, and tokens of a block of block causal documents.
WINDOW = BLOCK_CAUSAL = 1024
#: Tokens of a block of the block-sparse patterns, exactly or on average.
BLOCK_SPARSE = 128
KEPT = 0.5
#: Patterns whose documents are drawn as whole blocks instead of from a distribution of lengths.
_OF_BLOCKS = ("block_causal_document",)

Lengths = LengthDistribution | str | Path | None


def sample(
    pattern: str,
    seqlen: int,
    *,
    lengths: Lengths = None,
    seed: int = 0,
    max_share: float | None = None,
    **factors: Any,
) -> Mask:
    """Draws a mask.

    Args:
        pattern: Name of a pattern, as `longca.masks.get_pattern` takes it. The parts of an intersection share factors.
        seqlen: Number of queries and of keys.
        lengths: The source of document lengths: a distribution, its name, or a file. None takes the paper's choice
            for this seqlen.
        seed: The same seed gives the same mask on every machine.
        max_share: Cuts each document to this share of seqlen.
        **factors: Factors that are taken as given instead of being drawn.

    Raises:
        UnknownNameError: The pattern, a factor or the distribution is unknown.
        RequestError: A file of lengths cannot be read.
        MaskError: A length, the seed or a given factor does not fit.
    """
    kind = get_pattern(pattern)
    seqlen = check_seqlen(seqlen)
    seed = FACTORS["seed"].check(seed, seqlen)
    draw = _Draw(seqlen, resolve_lengths(lengths, seqlen), seed, max_share)
    # Given factors are checked first, because drawn factors may depend on them.
    factors = {k: FACTORS[k].check(v, seqlen) if k in kind.factors else v for k, v in factors.items()}
    drawn: list[str] = []
    for part in kind.parts or (kind,):
        for name in part.factors:
            if name not in factors:
                factors[name] = _DRAWN[name](draw, part.name, factors)
                drawn.append(name)
    mask = build(pattern, seqlen, **factors)
    if names := [name.replace("_", " ") for name in drawn if name not in ("heads", "seed")]:
        source = f" from {draw.lengths.name}" if "documents" in drawn and draws_lengths(pattern) else ""
        mask.origin = f"not given: {', '.join(names)}; drawn with seed {seed}{source}"
    return mask


def draws_lengths(pattern: str) -> bool:
    """Whether a pattern's documents are drawn from a distribution of lengths."""
    kind = get_pattern(pattern)
    return any("documents" in part.factors and part.name not in _OF_BLOCKS for part in kind.parts or (kind,))


class _Draw:
    """The random streams that factors are drawn from. Documents and other factors have separate streams."""

    def __init__(self, seqlen: int, lengths: LengthDistribution, seed: int, max_share: float | None) -> None:
        self.seqlen, self.lengths, self.seed, self.max_share = seqlen, lengths, seed, max_share
        self.rng = np.random.default_rng([seed, 1])

    def integer(self, least: int, most: int) -> int:
        """Draws uniformly from least to most. Returns least if most is not above it."""
        return least + int(self.rng.random() * (max(most, least) - least + 1))

    def documents(self) -> list[int]:
        """Draws document lengths from the distribution."""
        return self.lengths.sample(self.seqlen, np.random.default_rng([self.seed, 0]), self.max_share).tolist()

    def documents_of_blocks(self, block: int) -> list[int]:
        """Draws documents of 1 to 8 blocks. The last one is cut at the total."""
        most = -(-self.seqlen // block)
        check_pieces(most, "blocks", "Take larger blocks")
        stops = np.cumsum(1 + np.floor(self.rng.random(most) * 8).astype(np.int64)) * block
        stops = np.minimum(stops, self.seqlen)
        lengths = np.diff(stops, prepend=0)
        return lengths[lengths > 0].tolist()

    def boundaries(self, mean: int) -> list[int]:
        """Draws bounds of blocks of `mean` tokens on average: distinct cuts, drawn uniformly."""
        blocks = max(1, round(self.seqlen / mean))
        check_bitmap(1, blocks)
        scores, cuts = self.rng.random(self.seqlen - 1), blocks - 1
        if not cuts:
            return [0, self.seqlen]
        most = np.partition(scores, cuts - 1)[cuts - 1]
        below, level = np.flatnonzero(scores < most), np.flatnonzero(scores == most)
        return [0, *np.sort(np.concatenate([below, level[: cuts - len(below)]]) + 1).tolist(), self.seqlen]


def _documents(draw: _Draw, pattern: str, factors: dict[str, Any]) -> list[int]:
    if not draws_lengths(pattern):
        return draw.documents_of_blocks(factors.get("block", BLOCK_CAUSAL))
    return draw.documents()


def _window(draw: _Draw, pattern: str, factors: dict[str, Any]) -> int:
    if pattern == "global_sliding_window":
        return int(factors.get("global_tokens", draw.integer(1, draw.seqlen // 3 - 1)))
    return WINDOW


def _prefix(draw: _Draw, pattern: str, factors: dict[str, Any]) -> int:
    return draw.integer(1, factors["documents"][0] if "documents" in factors else draw.seqlen)


def _block(draw: _Draw, pattern: str, factors: dict[str, Any]) -> int:
    return BLOCK_CAUSAL if pattern == "block_causal_document" else BLOCK_SPARSE


_DRAWN: dict[str, Callable[[_Draw, str, dict[str, Any]], Any]] = {
    "documents": _documents,
    "window": _window,
    "prefix": _prefix,
    "block": _block,
    "global_tokens": lambda draw, pattern, factors: min(factors["window"], draw.seqlen),
    "boundaries": lambda draw, pattern, factors: draw.boundaries(BLOCK_SPARSE),
    "kept": lambda draw, pattern, factors: KEPT,
    "heads": lambda draw, pattern, factors: 1,
    "seed": lambda draw, pattern, factors: draw.seed,
}
