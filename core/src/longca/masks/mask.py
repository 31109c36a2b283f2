"""Mask: what every mask is, whatever it is made of."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.masks.blocks import Blocks
from longca.masks.forms import Form
from longca.masks.slices import MAX_SEQLEN

if TYPE_CHECKING:
    from longca.masks.slice_mask import SliceMask

__all__ = ["MAX_DENSE_CELLS", "Admits", "Mask", "check_seqlen"]

#: The largest boolean matrix `dense` makes: 4 GiB, one head at 64 K tokens.
MAX_DENSE_CELLS = 2**32

Intervals = tuple[NDArray[np.int32], NDArray[np.int32]]

_keys = itertools.count(1)
_by_key: weakref.WeakValueDictionary[int, Mask] = weakref.WeakValueDictionary()


class Admits(Protocol):
    """What a verdict asks of a mask; a pattern answers the same for all of its masks."""

    @property
    def label(self) -> str:
        """What to call it in a message."""

    @property
    def heads(self) -> int:
        """Heads with masks of their own; 1 where all heads share one."""

    @property
    def block_size(self) -> int | None:
        """Tokens a block of a uniform block-sparse mask; None where blocks differ, are not known or are not there."""

    @property
    def has_uniform_blocks(self) -> bool:
        """Whether all blocks of a block-sparse mask are of one size."""

    @property
    def is_square(self) -> bool:
        """Whether there are as many queries as keys."""

    def admits(self, form: Form) -> bool:
        """Whether the mask can be written in a form exactly."""

    def count(self, form: Form) -> int:
        """How many intervals or layers an admitted form takes; 1 for forms that have no count."""


class Mask(ABC):
    """Which keys each query sees: `seqlen_q` × `seqlen_k`, for one head or several.

    Masks are immutable; two are equal where they show the same, whatever they are made of.

    Attributes:
        seqlen_q: Queries.
        seqlen_k: Keys.
        pattern: Name of the pattern it was built by; None for any other mask, a cut for instance.
        factors: The pattern's factors.
        key: A number of this object's own in this process, by which `Mask.by_key` finds it.
        key_array: The key as an array: to a compiler it is data, where a number would be a constant of the program.
    """

    def __init__(self, seqlen_q: int, seqlen_k: int) -> None:
        self.seqlen_q = check_seqlen(seqlen_q, "seqlen_q", least=0)
        self.seqlen_k = check_seqlen(seqlen_k, "seqlen_k", least=0)
        self.pattern: str | None = None
        self.factors: Mapping[str, Any] = {}
        self._take_key()

    def _take_key(self) -> None:
        self.key = next(_keys)
        self.key_array = np.array(self.key)
        _by_key[self.key] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy is an object of its own, and one from another process brings a key that means another mask here.
        self.__dict__.update(state)
        self._take_key()

    @staticmethod
    def by_key(key: int) -> Mask:
        """The living mask of a key.

        Raises:
            MaskError: It is gone; whoever uses a key must hold on to its mask.
        """
        try:
            return _by_key[key]
        except KeyError:
            raise MaskError(
                f"the mask with key {key} no longer exists; keep a reference to it while it is used"
            ) from None

    # What it shows

    @property
    @abstractmethod
    def heads(self) -> int:
        """Heads with masks of their own; 1 where all heads share one."""

    @abstractmethod
    def head(self, index: int) -> SliceMask:
        """The mask of one head, as a mask of slices.

        Raises:
            MaskError: There is no such head.
        """

    @property
    @abstractmethod
    def area(self) -> int:
        """Visible (query, key) pairs, exactly; summed over `heads`."""

    @abstractmethod
    def dense(self) -> NDArray[np.bool_]:
        """The boolean matrix: [seqlen_q, seqlen_k], or [heads, seqlen_q, seqlen_k] where heads differ.

        Raises:
            MaskError: It would have more than MAX_DENSE_CELLS entries.
        """

    @abstractmethod
    def cut(self, q_ranges: Iterable[Sequence[int]], k_ranges: Iterable[Sequence[int]]) -> Mask:
        """The mask between some queries and some keys, re-indexed from 0.

        Args:
            q_ranges: (start, stop) of the queries kept, ascending and disjoint.
            k_ranges: The same for the keys.

        Raises:
            MaskError: Ranges outside the mask, descending or overlapping.
        """

    def visible_keys(self) -> NDArray[np.int64]:
        """How many keys each query sees: int64 [heads, seqlen_q]."""
        intervals = (self.head(h).row_intervals() for h in range(self.heads))
        return np.stack([(stops - starts).sum(0, dtype=np.int64) for starts, stops in intervals])

    @property
    def density(self) -> float:
        """Visible pairs over all pairs; 0 for a mask without pairs."""
        cells = self.heads * self.seqlen_q * self.seqlen_k
        return self.area / cells if cells else 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no query sees any key."""
        return self.area == 0

    @property
    def is_square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.seqlen_q == self.seqlen_k

    @property
    def label(self) -> str:
        """What to call it in a message: the pattern and its size."""
        size = f"{self.seqlen_q}" if self.is_square else f"{self.seqlen_q} × {self.seqlen_k}"
        return f"{self.pattern or 'mask'} of {size} tokens"

    # How it converts

    @abstractmethod
    def admits(self, form: Form) -> bool:
        """Whether the mask can be written in a form exactly."""

    @abstractmethod
    def count(self, form: Form) -> int:
        """How many intervals or layers an admitted form takes; 1 for forms that have no count."""

    @property
    def block_size(self) -> int | None:
        """Tokens a block of a uniform block-sparse mask; None for any other mask."""
        return None

    @property
    def has_uniform_blocks(self) -> bool:
        """Whether all blocks of a block-sparse mask are of one size; False for any other mask."""
        return self.block_size is not None

    @abstractmethod
    def row_intervals(self, n: int | None = None) -> Intervals:
        """Each query's keys as maximal half-open intervals in ascending order: (starts, stops), int32 [n, seqlen_q].

        Args:
            n: Intervals a row, the unused ones [0, 0); None for as many as the fullest row has.

        Raises:
            MaskError: A row has more than n, or heads differ (take one with `head`).
        """

    @abstractmethod
    def column_intervals(self, n: int | None = None) -> Intervals:
        """Each key's queries, as `row_intervals` does for each query: (starts, stops), int32 [n, seqlen_k]."""

    @abstractmethod
    def blocks(self, block_q: int, block_k: int) -> Blocks:
        """Runs of visible blocks of [block_q, block_k] tokens, by query block and by key block.

        Raises:
            MaskError: A block size below 1, or heads differ (take one with `head`).
        """

    def tile_efficiency(self, block_q: int = 128, block_k: int = 128) -> float:
        """Area over the area of the tiles it touches: the share of a tiled kernel's work that is not wasted."""
        runs = [self.head(h).blocks(block_q, block_k).by_query for h in range(self.heads)]
        tiles = sum(r.num_full + r.num_partial for r in runs)
        return self.area / (tiles * block_q * block_k) if tiles else 0.0

    # What it is to others

    @property
    @abstractmethod
    def digest(self) -> str:
        """16 hex digits that are the same for equal masks, in every process and on every machine."""

    @abstractmethod
    def _shows_same(self, other: Mask) -> bool:
        """Equality with a mask of the same size, heads and area."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self is other or (self._size() == other._size() and self._shows_same(other))

    def __hash__(self) -> int:
        return hash(self._size())

    def _size(self) -> tuple[int, int, int, int]:
        return self.heads, self.seqlen_q, self.seqlen_k, self.area

    def _check_dense(self) -> None:
        cells = self.heads * self.seqlen_q * self.seqlen_k
        if cells > MAX_DENSE_CELLS:
            raise MaskError(
                f"the dense form of this {self.label} would take {cells / 2**30:.0f} GiB; at most "
                f"{MAX_DENSE_CELLS / 2**30:.0f} GiB are made. Use row_intervals, blocks or cut instead"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}, area {self.area}>"


def check_seqlen(value: Any, name: str = "seqlen", least: int = 1) -> int:
    """A sequence length as an int.

    Raises:
        MaskError: Not an integer from `least` to MAX_SEQLEN.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise MaskError(f"{name} is {value!r}; give an integer number of tokens")
    if not least <= value <= MAX_SEQLEN:
        raise MaskError(f"{name} is {value}; lengths from {least} to {MAX_SEQLEN} (2³⁰) tokens are allowed")
    return int(value)
