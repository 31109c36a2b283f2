"""Interval masks inside FlashAttention-4's kernels for sm90: each token's word is made from its intervals.

`fragment_mod` explains words. A table has each token's intervals on the other side, and the kernels receive the table's
address.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Uint32, cute

from longca_flashattn.fragment_mod import FragmentMod, from_column

__all__ = ["IntervalMod"]


class IntervalMod(FragmentMod):
    """A `mask_mod` that tests whether a token lies in one of the intervals of the token on the other side.

    Its scalar is the address of the table.

    Args:
        intervals: Intervals a token.
        by_key: True if keys have intervals of queries. False if queries have intervals of keys.
        columns: Number of columns of a thread's fragment on the other side.
    """

    def __init__(self, intervals: int, *, by_key: bool, columns: int) -> None:
        super().__init__(f"intervals-{intervals}", by_key=by_key, columns=columns)
        self._intervals = intervals

    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The bits of the columns in the token's intervals. See `FragmentMod.word`."""
        width = 2 * self._intervals
        pointer = cute.make_ptr(Int32, scalars[0], cute.AddressSpace.gmem, assumed_align=4 * width)
        bounds = cute.make_tensor(pointer + owner * width, cute.make_layout(width)).load()
        word = Uint32(0)
        for interval in range(self._intervals):
            word = word | (from_column(bounds[2 * interval] - first) & ~from_column(bounds[2 * interval + 1] - first))
        return word
