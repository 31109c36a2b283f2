"""Suspicion: the rank that this process waits for too long, told to the peers of all its links.

A peer that waits may itself wait for another. It says so, and so a rank names the one at the end of such a chain.
"""

from __future__ import annotations

import threading
import weakref
from itertools import count

from longca_cp.transports.counters import Counters

__all__ = ["SUSPICION", "Suspicion"]


class Suspicion:
    """The rank that this process waits for.

    Attributes:
        rank: The rank among all ranks, or None.
    """

    def __init__(self) -> None:
        self.rank: int | None = None
        self._wait = 0
        self._waits = count(1)
        self._counters: weakref.WeakSet[Counters] = weakref.WeakSet()
        self._failed: weakref.WeakSet[Counters] = weakref.WeakSet()
        self._lock = threading.Lock()

    def tell(self, counters: Counters) -> None:
        """Tells the peers of one more link, as long as its counters live."""
        with self._lock:
            self._counters.add(counters)

    def wait(self) -> int:
        """The number of a new wait. Later waits have greater numbers."""
        return next(self._waits)

    def suspect(self, wait: int, rank: int) -> None:
        """Suspects a rank. The earliest wait counts, because the later ones may come of it.

        Args:
            wait: The number of the wait, which is late.
            rank: The rank among all ranks.
        """
        with self._lock:
            if self.rank is None or wait <= self._wait:
                self._wait = wait
                self._say(rank)

    def clear(self, wait: int | None = None) -> None:
        """Suspects no rank any more because of a wait, or at all. After `keep` it does nothing."""
        with self._lock:
            if self.rank is not None and not self._failed and wait in (None, self._wait):
                self._say(None)

    def keep(self, counters: Counters) -> None:
        """Suspects the rank as long as the counters of a failed link live. Peers may ask after its next calls."""
        with self._lock:
            self._failed.add(counters)

    def _say(self, rank: int | None) -> None:
        if rank != self.rank:
            self.rank = rank
            for counters in self._counters:
                counters.suspect(rank)


#: That of this process.
SUSPICION = Suspicion()
