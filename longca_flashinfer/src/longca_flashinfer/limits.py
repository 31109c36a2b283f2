"""The number of keys in FlashInfer's lists. Torch-free."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from longca.masks import BlockSparseMask

__all__ = ["Listed", "listed"]


class Listed(NamedTuple):
    """The entries of FlashInfer's lists, over all KV heads and query blocks.

    Attributes:
        blocks: Number of key blocks.
        keys: Number of keys. Each key is one entry.
    """

    blocks: int
    keys: int


def listed(mask: BlockSparseMask, num_heads_kv: int) -> Listed:
    """Counts the entries of FlashInfer's lists. A query block that sees nothing is given the first key block."""
    sizes = np.diff(mask.k_bounds)
    blocks = keys = 0
    for head in range(mask.heads):
        kept = mask.kept(head)
        times = kept.sum(0)
        times[:1] += np.count_nonzero(~kept.any(1))
        blocks, keys = blocks + int(times.sum()), keys + int(times @ sizes)
    copies = num_heads_kv // mask.heads
    return Listed(blocks * copies, keys * copies)
