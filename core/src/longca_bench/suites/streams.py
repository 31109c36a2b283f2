"""Streams: the masks of consecutive training steps, each another one.

A pattern with documents draws them anew for each step. The blocks that a block-sparse mask keeps drift: the scores of
a step are those of the step before, mixed with new ones, and each query block keeps the key blocks with the highest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from longca.errors import MaskError
from longca.masks import BlockSparseMask, Mask, SliceMask

if TYPE_CHECKING:
    from longca_bench.suites.case import Case

__all__ = ["Stream", "cold", "masks_of"]

#: Correlation of a block's scores in two consecutive steps.
DRIFT = 0.9
#: Distance of the seeds of consecutive steps. Suites list smaller seeds.
_NEXT = 1_000_003


@dataclass(frozen=True)
class Stream:
    """A case of many masks instead of one.

    Attributes:
        masks: Number of masks, one for each step.
        layers: Calls of attention in a step, forward and backward, with one mask.
    """

    masks: int
    layers: int


@lru_cache(maxsize=1)
def masks_of(case: Case) -> tuple[Mask, ...]:
    """The masks of a case's stream, in order. A stream of documents begins with the case's own mask."""
    assert case.stream is not None, "the case is a stream"
    first = case.mask
    if isinstance(first, BlockSparseMask):
        return tuple(_drifting(first, case.seed, case.stream.masks))
    alone = replace(case, stream=None)
    return tuple(replace(alone, seed=case.seed + _NEXT * step).mask for step in range(case.stream.masks))


def _drifting(first: BlockSparseMask, seed: int, count: int) -> Iterator[BlockSparseMask]:
    """Masks with as many kept blocks in a row as the first mask."""
    kept = int(first.kept(0)[0].sum())
    shape = first.heads, len(first.q_bounds) - 1, len(first.k_bounds) - 1
    random = np.random.default_rng(seed)
    scores = random.standard_normal(shape, np.float32)
    for _ in range(count):
        best = np.argpartition(scores, shape[2] - kept, axis=2)[..., shape[2] - kept :]
        keeps = np.zeros(shape, np.bool_)
        np.put_along_axis(keeps, best, True, axis=2)
        yield BlockSparseMask.from_bits(np.packbits(keeps, axis=2), first.q_bounds, first.k_bounds)
        scores = DRIFT * scores + np.float32(np.sqrt(1 - DRIFT**2)) * random.standard_normal(shape, np.float32)


def cold(mask: Mask) -> Mask:
    """The same mask with nothing worked out, as a data loader makes it.

    Raises:
        MaskError: The mask is of a kind that no pattern builds.
    """
    if isinstance(mask, BlockSparseMask):
        return BlockSparseMask.from_bits(mask.bits, mask.q_bounds, mask.k_bounds)
    if isinstance(mask, SliceMask):
        return SliceMask(mask.array, mask.seqlen_q, mask.seqlen_k)
    raise MaskError(f"a {mask.label} cannot be made anew")
