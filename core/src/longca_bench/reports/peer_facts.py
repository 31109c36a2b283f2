"""Facts about copies between GPUs: peer access, bandwidths, and symmetric memory."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from longca_bench.reports.machine import Fact

if TYPE_CHECKING:
    from longca_bench.measuring.peer_access import PeerAccess

__all__ = ["find_peers", "no_peers"]

#: Share of the median bandwidth below which a pair of GPUs is slow.
_SLOW = 0.8
_COLLECTIVES = "strategies move tensors by collectives here"


def no_peers(gpus: int) -> Fact:
    """The fact of a machine without two GPUs."""
    return Fact("peer access", f"{'one GPU' if gpus else 'no GPU'} is here, and copies between GPUs need two", None)


def find_peers(found: PeerAccess) -> Iterator[Fact]:
    """The access and the bandwidths from each GPU to the others, and whether symmetric memory works.

    Args:
        found: The measurement.
    """
    rates = [rate for row in found.bandwidths for rate in row if rate is not None]
    usual = median(rates) if rates else 0.0
    for gpu, (reaches, row) in enumerate(zip(found.reaches, found.bandwidths, strict=True)):
        words = ", ".join(
            f"to {other}: {'no access' if rate is None else f'{rate:.0f} GB/s'}"
            for other, rate in enumerate(row)
            if other != gpu
        )
        slow = any(rate is not None and rate < _SLOW * usual for rate in row)
        advice = "" if all(reaches) else f"without access to peers, {_COLLECTIVES}"
        yield Fact(
            f"copies of GPU {gpu}",
            words,
            all(reaches) and not slow,
            advice or "some pairs are slower; see nvidia-smi topo -m",
        )
    works = not found.symmetric
    what = "two processes write into each other's GPU" if works else found.symmetric
    yield Fact("symmetric memory", what, works, f"without it, {_COLLECTIVES}")
