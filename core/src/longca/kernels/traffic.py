"""Traffic: the bytes that this rank sends, by kind of collective.

Strategies say what they send, and it is counted while somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["count", "counted"]

_counters: list[Counter[str]] = []


def count(kind: str, sent: int) -> None:
    """Notes bytes sent by a collective: `p2p`, `all_to_all`, `all_gather` or `reduce_scatter`."""
    for counter in _counters:
        counter[kind] += sent


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what this process sends while the context lasts, whichever strategy sends it.

    Bytes are those of the tensors that leave for other ranks. Of an all-gather and a reduce-scatter it is what every
    algorithm has to send at least, the (n − 1)-fold of a rank's part.
    """
    counter: Counter[str] = Counter()
    _counters.append(counter)
    try:
        yield counter
    finally:
        _counters[:] = [other for other in _counters if other is not counter]
