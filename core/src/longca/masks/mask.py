"""Mask: the common interface of all masks."""

from __future__ import annotations

import itertools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from longca.errors import MaskError
from longca.limits import MAX_DENSE_CELLS, MAX_SEQLEN, shown
from longca.masks.blocks import Blocks
from longca.masks.forms import Form

if TYPE_CHECKING:
    from longca.masks.slice_mask import SliceMask

__all__ = ["Mask", "check_seqlen"]

Intervals = tuple[NDArray[np.int32], NDArray[np.int32]]

_keys = itertools.count(1)
_by_key: weakref.WeakValueDictionary[int, Mask] = weakref.WeakValueDictionary()


class Mask(ABC):
    """The keys that each query sees: `seqlen_q` × `seqlen_k`, for one head or several.

    Masks are immutable. Two masks are equal if they show the same pairs, even in different representations.

    Attributes:
        seqlen_q: Number of queries.
        seqlen_k: Number of keys.
        pattern: Name of the pattern that built it. None for any other mask, for instance a cut.
        factors: The factors of the pattern.
        origin: How `masks.sample` came by the factors that were not given, in words. Empty if all were given.
        key: A number that is unique to this object in this process. `Mask.by_key` finds the mask by it.
        key_array: The key as an array, which a compiler treats as data.
    """

    def __init__(self, seqlen_q: int, seqlen_k: int) -> None:
        self.seqlen_q = check_seqlen(seqlen_q, "seqlen_q", least=0)
        self.seqlen_k = check_seqlen(seqlen_k, "seqlen_k", least=0)
        self.pattern: str | None = None
        self.factors: Mapping[str, Any] = {}
        self.origin = ""
        self._take_key()

    def _take_key(self) -> None:
        self.key = next(_keys)
        self.key_array = np.array(self.key)
        _by_key[self.key] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy is a new object. One from another process brings a key that names another mask here.
        self.__dict__.update(state)
        self._take_key()

    @staticmethod
    def by_key(key: int) -> Mask:
        """The living mask with this key.

        Raises:
            MaskError: The mask no longer exists. Users of a key must keep a reference to the mask.
        """
        try:
            return _by_key[key]
        except KeyError:
            raise MaskError(
                f"the mask with key {key} no longer exists; keep a reference to it while it is used"
            ) from None

    # The visible pairs

    @property
    @abstractmethod
    def heads(self) -> int:
        """Number of heads with masks of their own. 1 if all heads share one mask."""

    @abstractmethod
    def head(self, index: int) -> SliceMask:
        """The mask of one head, as a mask of slices.

        Raises:
            MaskError: The head does not exist.
        """

    @property
    @abstractmethod
    def area(self) -> int:
        """Number of visible (query, key) pairs, summed over `heads`. The count is exact."""

    @abstractmethod
    def dense(self) -> NDArray[np.bool_]:
        """The boolean matrix: [seqlen_q, seqlen_k], or [heads, seqlen_q, seqlen_k] if heads differ.

        Raises:
            MaskError: The matrix would have more than MAX_DENSE_CELLS entries.
        """

    @abstractmethod
    def cut(self, q_ranges: Iterable[Sequence[int]], k_ranges: Iterable[Sequence[int]]) -> Mask:
        """The mask between the kept queries and the kept keys, re-indexed from 0.

        Args:
            q_ranges: (start, stop) of the queries kept, ascending and disjoint.
            k_ranges: (start, stop) of the keys kept, ascending and disjoint.

        Raises:
            MaskError: A range lies outside the mask, or ranges descend or overlap.
        """

    def visible_keys(self) -> NDArray[np.int64]:
        """Number of keys that each query sees: int64 [heads, seqlen_q]."""
        intervals = (self.head(h).row_intervals() for h in range(self.heads))
        return np.stack([(stops - starts).sum(0, dtype=np.int64) for starts, stops in intervals])

    @property
    def density(self) -> float:
        """Visible pairs over all pairs. 0 for a mask without pairs."""
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
        """The name of the mask in a message: its pattern and size."""
        size = f"{self.seqlen_q}" if self.is_square else f"{self.seqlen_q} × {self.seqlen_k}"
        return f"{self.pattern or 'mask'} of {size} tokens"

    @property
    def description(self) -> str:
        """The mask in a line: its pattern, size and factors, and the origin of those that were not given."""
        size = f"{self.seqlen_q:,} tokens" if self.is_square else f"{self.seqlen_q:,} queries × {self.seqlen_k:,} keys"
        parts = [f"{self.pattern or 'mask'} of {size}", *(_in_words(*each) for each in self.factors.items())]
        return ", ".join(parts) + f" ({self.origin})" * bool(self.origin)

    @property
    def noun(self) -> str:
        """The mask in a sentence, after an article."""
        return self.label.replace(self.pattern, f"{self.pattern} mask", 1) if self.pattern else self.label

    # Conversions

    @abstractmethod
    def admits(self, form: Form) -> bool:
        """Whether the form can express the mask exactly."""

    @abstractmethod
    def count(self, form: Form) -> int:
        """Number of intervals or layers that an admitted form takes. Forms without a count return 1."""

    @property
    def block_size(self) -> int | None:
        """Tokens of a block of a uniform block-sparse mask. None for any other mask."""
        return None

    @property
    def has_uniform_blocks(self) -> bool:
        """Whether all blocks of a block-sparse mask have one size. False for any other mask."""
        return self.block_size is not None

    @abstractmethod
    def row_intervals(self, n: int | None = None) -> Intervals:
        """Each query's keys as maximal half-open intervals in ascending order: (starts, stops), int32 [n, seqlen_q].

        Args:
            n: Intervals a row. Unused intervals are [0, 0). None takes the largest number of any row.

        Raises:
            MaskError: A row has more than n intervals, or heads differ (take one with `head`).
        """

    @abstractmethod
    def column_intervals(self, n: int | None = None) -> Intervals:
        """Each key's queries, in the form of `row_intervals`: (starts, stops), int32 [n, seqlen_k]."""

    @abstractmethod
    def blocks(self, block_q: int, block_k: int) -> Blocks:
        """Runs of visible blocks of [block_q, block_k] tokens, by query block and by key block.

        Raises:
            MaskError: A block size is below 1, or heads differ (take one with `head`).
        """

    def tile_efficiency(self, block_q: int = 128, block_k: int = 128) -> float:
        """Visible pairs over the area of the touched tiles: the useful share of a tiled kernel's work."""
        runs = [self.head(h).blocks(block_q, block_k).by_query for h in range(self.heads)]
        tiles = sum(r.num_full + r.num_partial for r in runs)
        return self.area / (tiles * block_q * block_k) if tiles else 0.0

    # Identity

    @property
    @abstractmethod
    def digest(self) -> str:
        """16 hex digits that are the same for equal masks, in every process and on every machine."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that are the same for equal masks of one kind. A kind may make them faster than its digest."""
        return self.digest

    @abstractmethod
    def _shows_same(self, other: Mask) -> bool:
        """Whether a mask of the same size, heads and area shows the same pairs."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return NotImplemented
        return self is other or (self._size() == other._size() and self._shows_same(other))

    def __hash__(self) -> int:
        return hash(self._size())

    # Algebra

    def __and__(self, other: Mask) -> SliceMask:
        """The pairs that both masks show (`longca.masks.intersection`)."""
        from longca.masks.algebra import intersection

        return intersection(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> SliceMask:
        """The pairs that either mask shows (`longca.masks.union`)."""
        from longca.masks.algebra import union

        return union(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> SliceMask:
        """The pairs that the mask hides (`longca.masks.complement`)."""
        from longca.masks.algebra import complement

        return complement(self)

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
    """Returns a sequence length as an int, or raises MaskError if it is no integer from `least` to MAX_SEQLEN."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise MaskError(f"{name} is {shown(value)}; give an integer number of tokens")
    if not least <= value <= MAX_SEQLEN:
        raise MaskError(f"{name} is {shown(value)}; lengths from {least} to {MAX_SEQLEN} (2³⁰) tokens are allowed")
    return int(value)


def _in_words(name: str, value: Any) -> str:
    """A factor of a mask in a few words. Boundaries of blocks become lengths."""
    words = name.replace("_", " ")
    if name == "kept":
        return f"{value * 100:g} % kept"
    if not isinstance(value, tuple):
        return f"{words} {value:,}" if isinstance(value, int) else f"{words} {value}"
    lengths, noun = (np.diff(value).tolist(), "blocks") if name == "boundaries" else (value, words)
    if len(lengths) <= 4:
        return f"{noun} of {', '.join(f'{n:,}' for n in lengths)}"
    return f"{len(lengths)} {noun} of {min(lengths):,} to {max(lengths):,}"
