"""Watch: a thread that looks at the posts that a stream waits for, because a stream waits without a deadline."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Awaited", "Watch"]

#: Seconds between two looks.
_LOOK = 0.2


@dataclass(frozen=True)
class Awaited:
    """A post that a stream waits for. The fields are those of `Link.expect`, with the awaited count."""

    index: int
    slot: int
    count: int
    what: str


class Watched(Protocol):
    """A link whose streams wait for posts, each at most `deadline` seconds."""

    deadline: float

    def has_come(self, awaited: Awaited) -> bool:
        """Whether a post has come."""

    def give_up(self, awaited: Awaited, others: list[Awaited]) -> None:
        """Ends the waits for a post that came too late and for those behind it. The watch is locked."""


class Watch:
    """The posts that a link's streams wait for, in the order of the program, and the thread that looks at them.

    Posts count from the end of the wait before, so that work of the streams does not count.

    Args:
        link: The link. The thread ends when it is gone.

    Attributes:
        lock: Held while the thread looks, and while a wait is added.
    """

    def __init__(self, link: Watched) -> None:
        self.lock = threading.Condition()
        self._pending: deque[Awaited] = deque()
        self._stopped, self._since = threading.Event(), time.monotonic()
        weakref.finalize(link, self.stop)
        thread = threading.Thread(target=self._work, args=(weakref.ref(link),), name="longca-link", daemon=True)
        thread.start()

    def add(self, awaited: Awaited) -> None:
        """Adds a wait. The caller holds the lock."""
        if not self._pending:
            self._since = time.monotonic()
        self._pending.append(awaited)
        self.lock.notify_all()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        with self.lock:
            self.lock.notify_all()

    def _work(self, found: weakref.ref[Watched]) -> None:
        while not self._stopped.wait(_LOOK):
            with self.lock:
                self.lock.wait_for(lambda: self._pending or self._stopped.is_set())
                if (link := found()) is not None:
                    self._look(link)
                    del link

    def _look(self, link: Watched) -> None:
        while self._pending and link.has_come(self._pending[0]):
            self._pending.popleft()
            self._since = time.monotonic()
        if not self._pending:
            return
        first = self._pending[0]
        if time.monotonic() - self._since > link.deadline:
            link.give_up(first, list(self._pending))
            self._pending.clear()
