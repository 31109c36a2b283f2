"""Problems that other people's kernels would compute wrongly without a word, and those that `bsa_gluon` has no tiles
for. They are refused. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator

from longca import Problem, Reason
from longca.masks import Mask
from longca_vsa.bsa_gluon.shape import unfit

__all__ = ["refusals"]

_FASTVIDEO = ("vsa", "vsa_triton")
_BLOCK = {"vsa": 64, "vsa_triton": 64, "fa2_sparse": 128}
_MOST = 2**31 - 1


def refusals(kernel: str, problem: Problem) -> Iterator[Reason]:
    """The reasons against a problem that an offer covers.

    Args:
        kernel: `bsa_gluon`, `vsa`, `vsa_triton` or `fa2_sparse`. Other kernels have no such reasons.
        problem: The problem. A pattern in place of its mask has no size.
    """
    if kernel == "bsa_gluon" and isinstance(problem.mask, Mask):
        yield from unfit(problem)
    if kernel not in _BLOCK:
        return
    if kernel in _FASTVIDEO and not math.isclose(problem.scale, problem.head_dim**-0.5, rel_tol=1e-6):
        offered = f"{kernel} has the factor 1/√head_dim on the scores compiled in"
        yield Reason("form", f"a softmax_scale of {problem.scale:g} was asked", offered, "Try bsa.")
    if isinstance(problem.mask, Mask):
        yield from _too_large(kernel, problem.heads_q, problem.mask)


def _too_large(kernel: str, heads: int, mask: Mask) -> Iterator[Reason]:
    """The kernels compute places in their block lists in 32 bits."""
    rows, columns = (-(-length // _BLOCK[kernel]) for length in (mask.seqlen_q, mask.seqlen_k))
    if (entries := heads * rows * columns) > _MOST:
        offered = f"{kernel} takes at most 2³¹ − 1 blocks of {_BLOCK[kernel]} over all query heads"
        yield Reason("lengths", f"{entries} were asked", offered, "Try bsa.")
