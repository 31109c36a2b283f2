"""Link evidence: the network of a device's hosts, and the overhead of calls beside kernels and collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from longca_advice.evidence import Row
from longca_advice.network import Link, Network, Transferred, fit_links, transferred
from longca_advice.rates import Observed, Rates, fit_rates

__all__ = ["links_of", "network_of", "rates_of"]


def links_of(rows: Iterable[Row]) -> Iterator[Transferred]:
    """The collectives that rows measured."""
    for row in rows:
        if row.mesh is not None:
            kinds = {kind: (found.calls, found.bytes, found.seconds) for kind, found in row.communication.items()}
            yield from transferred(row.mesh, kinds)


def network_of(rows: Iterable[Row], device: str, between: Link | None) -> Network:
    """The network of a device's hosts.

    Args:
        rows: The evidence.
        device: The device's name in the evidence.
        between: The link of each device to other hosts, or None if none was named.
    """
    return Network(fit_links(list(links_of(row for row in rows if row.run.device == device))), between)


def rates_of(rows: Iterable[Row], device: str) -> Rates:
    """The overhead of calls on a device beside their kernels and their collectives.

    Args:
        rows: The evidence.
        device: The device's name in the evidence.
    """
    mine = (row for row in rows if row.run.device == device and row.observed)
    return fit_rates([_observed(row.seconds, *row.observed) for row in mine])


def _observed(
    seconds: float, expected: float, touched: float, beside: float, beside_p2p: float, count: float
) -> Observed:
    return Observed(seconds, expected, touched, beside, beside_p2p, int(count))
