"""Turns: the place of a rank in the row of comparisons of a mesh, and the calls that it made since the last one."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.distributed.distributed_c10d import Store

__all__ = ["TURNS", "Turn", "digest_of", "turn_of"]


@dataclass
class Turn:
    """The place of a rank in the row of comparisons. The rank's listener for alarms reads and writes it too.

    Attributes:
        prefix: The beginning of the mesh's keys.
        rank: The rank.
        number: The number of the next comparison.
        keys: The keys that this rank has written for it.
        before: The keys that it has written for the comparison before.
        has_come: Whether the other ranks count this one already. It gave up waiting for them, or its listener answered.
        calls: The numbers of the calls that were not compared yet, in order: eight bytes each.
        said: Bytes of them that this rank has written for this comparison.
        latest: The latest known call, in words that ranks compare.
        is_moving: Whether data of that call may be on their way.
        told: The error that the listener heard of, which the next call raises. Empty if there is none.
        lock: Held by the thread that writes for this rank.
    """

    prefix: str
    rank: int
    number: int = 0
    keys: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    has_come: bool = False
    calls: bytearray = field(default_factory=bytearray)
    said: int = 0
    latest: Mapping[str, str] = field(default_factory=dict)
    is_moving: bool = False
    told: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def key(self) -> str:
        """The beginning of the keys of the next comparison."""
        return f"{self.prefix}/{self.number}"

    def write(self, store: Store, digest: str, text: str, calls: int | None = None) -> str:
        """Writes this rank's part of the next comparison, and returns the beginning of its keys.

        Args:
            store: The store.
            digest: A word by which equal texts are counted.
            text: The text.
            calls: Calls that come before the comparison. None for all that were noted.
        """
        with self.lock:
            key, self.said = self.key, len(self.calls) if calls is None else 8 * calls
            store.set(f"{key}/{self.rank}", text)
            store.add(f"{key}/{digest}", 1)
            if not self.has_come:
                store.add(f"{key}/all", 1)
            self.keys |= {f"{key}/{self.rank}", f"{key}/{digest}", f"{key}/all"}
            return key

    def end(self) -> set[str]:
        """Goes on to the next comparison. Returns the keys that no rank will read again."""
        with self.lock:
            over, self.before, self.keys = self.before, self.keys, set()
            self.number, self.has_come = self.number + 1, False
            del self.calls[: self.said]
            self.said = 0
            return over

    def words(self) -> dict[str, str]:
        """The calls that were not compared yet, in words that ranks compare."""
        return {
            "calls before": f"{len(self.calls) // 8} since the ranks last compared (digest {digest_of(self.calls)})"
        }


#: The turns of all meshes, by the beginning of their keys and the rank.
TURNS: dict[tuple[str, int], Turn] = {}


def turn_of(prefix: str, rank: int) -> Turn:
    """The turn of a rank of a mesh."""
    return TURNS.setdefault((prefix, rank), Turn(prefix, rank))


def digest_of(data: bytes | bytearray) -> str:
    """A digest that is the same in every process."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()
