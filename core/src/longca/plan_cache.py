"""PlanCache: results that are computed once for a mask and reused, such as plans, verdicts and choices.

All caches that depend on a mask follow one rule:

- An entry is found by the identity of its mask (`Mask.key`) and by everything else that the result depends on. Equal
  masks may have other blocks or factors, and comparing long ones takes time, so masks are never compared by value.
- The key does not hold the mask. A cache keeps a mask alive only if the result itself holds it, as a plan does.
- A cache holds a fixed number of entries. The entry that was not used for the longest time goes first.
- Threads may share a cache. A thread that needs a result which another thread computes waits for it.
- Every cache is emptied when the process ends. Process groups, which some keys and results hold, must not outlive it.

Ranks compute some results together. Such results need a cache of their own: a result that one rank computes alone must
not displace them, or that rank would wait for the others.
"""

from __future__ import annotations

import atexit
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar, cast

__all__ = ["PlanCache"]

#: Results that a cache keeps, where its owner names no other number: plans, layouts and calls on meshes.
MOST = 64

T = TypeVar("T")

_MISSING: Final[Any] = object()


class PlanCache(Generic[T]):
    """The `most` most recently used results for masks."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._entries: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, threading.RLock] = {}
        atexit.register(self.clear)

    def get(self, mask: object, about: Hashable, make: Callable[[], T]) -> T:
        """The result for a mask, computed by `make` if it is not there. `about` is everything else that it depends on.

        The mask may be its key. A pattern, which has no key, counts by its value.
        """
        entry = getattr(mask, "key", mask), about
        with self._lock:
            found = self._entries.get(entry, _MISSING)
            if found is not _MISSING:
                self._entries.move_to_end(entry)
                return cast(T, found)
            under_way = self._under_way.setdefault(entry, threading.RLock())
        with under_way:
            found = self._entries.get(entry, _MISSING)
            return self._made(entry, make) if found is _MISSING else cast(T, found)

    def _made(self, entry: Hashable, make: Callable[[], T]) -> T:
        """A new result. Threads that wait for it compute it themselves if `make` raises."""
        try:
            made = make()
            with self._lock:
                self._entries[entry] = made
                if len(self._entries) > self.most:
                    self._entries.popitem(last=False)
            return made
        finally:
            with self._lock:
                self._under_way.pop(entry, None)

    def find(self, mask: object, about: Hashable) -> T | None:
        """The result for a mask, or None if it is not there. Finding an entry is no use of it."""
        with self._lock:
            return self._entries.get((getattr(mask, "key", mask), about))

    def clear(self) -> None:
        """Removes all entries."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
