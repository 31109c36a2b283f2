"""The shapes of bsa_gluon's tiles and steps, and the problems that do not fit them. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from longca import Problem, Reason
from longca.kernels.sizes import block_sparse
from longca.masks import BlockSparseMask
from longca_vsa.bsa.configs import packed_heads

__all__ = ["PIECE", "ROWS", "WARPGROUP", "block_size", "unfit"]

#: Rows of a tile: a query under one head each.
ROWS = 128
#: Rows of a warp group, which has one matrix instruction's rows.
WARPGROUP = 64
#: Keys that one copy brings.
PIECE = 64


def block_size(mask: BlockSparseMask) -> int:
    """Tokens of a mask's blocks."""
    assert mask.block_size is not None, "the offer has uniform blocks alone"
    return mask.block_size


def unfit(problem: Problem) -> Iterator[Reason]:
    """The reasons against a problem that the offer covers."""
    packed, group = packed_heads(problem), problem.heads_q // problem.num_heads_kv
    if packed > WARPGROUP or packed & (packed - 1):
        offered = "bsa_gluon takes 1, 2, 4, 8, 16, 32 or 64 query heads a KV head if they share their mask"
        yield Reason("gqa", f"{group} were asked", offered, "Try bsa.")
    if (size := block_size(block_sparse(problem))) * packed < ROWS:
        offered = (
            f"bsa_gluon takes blocks of at least {ROWS} rows: queries under each head of a group that shares a mask"
        )
        yield Reason("mask_heads", f"these have {size * packed}", offered, "Try bsa, or cudnn_bsa.")
