"""Interval masks inside FlashAttention-4's kernels for sm90: a token's word made from its intervals.

`fragment_mod` says what a word is. A token's intervals of the other side's tokens lie side by side in a table, of whose
address the kernels are told.
"""

from __future__ import annotations

from typing import Any

from cutlass import Int32, Uint32, cute

from longca_flashattn.fragment_mod import FragmentMod, from_column

__all__ = ["IntervalMod"]


class IntervalMod(FragmentMod):
    """A `mask_mod`: whether the other side's token is in one of a token's intervals. Its scalar is the table's address.

    Args:
        intervals: Intervals a token.
        by_key: Whether keys have the intervals (of queries), else queries have them (of keys).
        columns: Columns that a thread's fragment has on the other side.
    """

    def __init__(self, intervals: int, *, by_key: bool, columns: int) -> None:
        super().__init__(f"intervals-{intervals}", by_key=by_key, columns=columns)
        self._intervals = intervals

    def word(self, scalars: tuple[Any, ...], head: Any, owner: Any, first: Any) -> Any:
        """The columns in the token's intervals; see `FragmentMod.word`."""
        width = 2 * self._intervals
        pointer = cute.make_ptr(Int32, scalars[0], cute.AddressSpace.gmem, assumed_align=4 * width)
        bounds = cute.make_tensor(pointer + owner * width, cute.make_layout(width)).load()
        word = Uint32(0)
        for interval in range(self._intervals):
            word = word | (from_column(bounds[2 * interval] - first) & ~from_column(bounds[2 * interval + 1] - first))
        return word
