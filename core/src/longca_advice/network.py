"""Networks: the time of a collective, from measurements within a host and from a link's figures between hosts.

Within a host a collective takes α a call, plus the bytes that leave a rank over β. β is a bus bandwidth as nccl-tests
define it (doc/PERFORMANCE.md), which makes it the same for any number of ranks. Between hosts, B is the bandwidth of
each GPU to the network. A group has n ranks, g of them share a host, and s bytes leave a rank:

    p2p                           s / B          the slowest hop is between hosts
    all_to_all                    s (n − g) / (n − 1) / B    of the ranks that a rank sends to, n − g are elsewhere
    all_gather, reduce_scatter    s / (g B)      g rings leave a host, each by another GPU, with a g-th of the bytes

The transfers within the hosts run at the same time, so that the longer of the two counts. Latencies come on top: one
hop's latency, and a ring's latency for each host but one.

Sources: the bandwidths of rings and of direct exchanges in nccl-tests, doc/PERFORMANCE.md. For α + bytes / β: Thakur,
Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, prod
from typing import NamedTuple

import numpy as np

from longca.errors import RequestError, UnsupportedError
from longca.manifests.schedule import MOVES, Move
from longca_advice.evidence import Collected
from longca_advice.fit import non_negative, robust

__all__ = [
    "Link",
    "Network",
    "Observed",
    "Rates",
    "Topology",
    "Transferred",
    "fit_links",
    "fit_rates",
    "transferred",
]

#: Bits per second of a unit, and seconds of one.
_BANDWIDTHS = {"b": 1.0, "B": 8.0}
_PREFIXES = {"": 1.0, "M": 1e6, "G": 1e9, "T": 1e12}
_LATENCIES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}

#: Relative errors below this are noise, and weigh all the same.
_NOISE = 0.01

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_LINK = re.compile(rf"{_NUMBER}\s*([MGT]?)(bps|bit|b|B)(?:/s)?\s*(?:,\s*{_NUMBER}\s*(s|ms|µs|us|ns))?")


class Transferred(NamedTuple):
    """Some collectives of one of `MOVES` that were measured together, without a kernel, on so many ranks each.

    The bytes are those that leave the rank that sends most, and the seconds those of all calls on the slowest rank.
    """

    kind: str
    ranks: int
    calls: int
    sent: float
    seconds: float


@dataclass(frozen=True)
class Link:
    """The time of a collective: latency in seconds + bytes that leave a rank / bandwidth in bytes a second, one way.

    A link that was not measured has a name.
    """

    bandwidth: float
    latency: float = 0.0
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Link:
        """A link between hosts: `400Gb` (bits a second), `50GB/s` (bytes a second) or `50GB/s,5µs` with a latency.

        Raises:
            RequestError: The text has another form.
        """
        found = _LINK.fullmatch(text.strip().replace("μ", "µ"))
        if found is None or not float(found[1]):
            raise RequestError(
                f"{text!r} is no network. Within a host give pcie4, pcie5 or nvlink. Between hosts give the bandwidth "
                "above 0 that each GPU has to it, in bits (400Gb) or bytes (50GB/s) a second, and if need be its "
                "latency: 50GB/s,5µs. Give both as pcie4+400Gb"
            )
        number, prefix, unit, latency, time = found.groups()
        rate = float(number) * _PREFIXES[prefix] * _BANDWIDTHS[unit[0]] / 8
        return cls(rate, float(latency) * _LATENCIES[time] if latency else 0.0)

    @classmethod
    def both(cls, text: str | None) -> tuple[Link | None, Link | None]:
        """The links within a host and between hosts of words such as `pcie4`, `400Gb` or `pcie4+400Gb`.

        None stands for links as they were measured, and for an unknown link between hosts.

        Raises:
            RequestError: The text has another form.
        """
        within, plus, between = (text or "").partition("+")
        if (name := within.strip().lower()) not in _WITHIN:
            return None, None if text is None else cls.parse(text)
        return _WITHIN[name], cls.parse(between) if plus else None


#: Links within a host by name. A GPU gets about 80 % of the rate of its 16 lanes, which is 31.5 GB/s in PCIe 4.0 and
#: 63 in 5.0 (PCI-SIG). NVLink is the link of the evidence.
_WITHIN = {"pcie4": Link(25e9, 25e-6, "pcie4"), "pcie5": Link(50e9, 25e-6, "pcie5"), "nvlink": None}


@dataclass(frozen=True)
class Topology:
    """The hosts of a mesh's ranks, which are next to one another in the mesh. None if one host has all ranks."""

    axis_sizes: tuple[tuple[str, int], ...]
    ranks_per_host: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis."""
        return dict(self.axis_sizes)

    def shared(self, axis: str) -> int:
        """How many ranks of a group along an axis share a host."""
        ranks = self.sizes[axis]
        if self.ranks_per_host is None:
            return ranks
        order = tuple(self.sizes)
        stride = prod(self.sizes[inner] for inner in order[order.index(axis) + 1 :])
        return max(1, min(ranks, self.ranks_per_host // stride))


@dataclass(frozen=True)
class Network:
    """The links that collectives use: within a host by kind and number of ranks, and of each GPU to other hosts."""

    inside: Mapping[str, Mapping[int, Link]]
    between: Link | None = field(default=None)

    def describe(self, ranks: int, per_host: int, measured: str) -> str:
        """The links of so many ranks in words. `measured` says in words where those without a name were measured."""
        parts = []
        if self.inside and per_host > 1:
            links = sorted(
                (self._inside(kind, min(ranks, per_host)) for kind in self.inside), key=lambda link: link.bandwidth
            )
            rates = dict.fromkeys(f"{link.bandwidth / 1e9:.0f}" for link in (links[0], links[-1]))
            parts = [f"linked at {' to '.join(rates)} GB/s ({links[0].name or measured})"]
        if ranks > per_host and self.between is not None:
            parts.append(f"{self.between.bandwidth / 1e9:g} GB/s between {-(-ranks // per_host)} hosts")
        return ", ".join(parts)

    def seconds(self, move: Move, topology: Topology) -> float:
        """The time of one move by itself.

        Raises:
            UnsupportedError: No collective of that kind was measured, or the link between hosts is unknown.
        """
        ranks, shared = topology.sizes[move.axis], topology.shared(move.axis)
        inside = self._inside(move.kind, shared)
        within = inside.latency + move.sent / inside.bandwidth
        if shared == ranks:
            return within
        if self.between is None:
            raise UnsupportedError(
                "the ranks are on several hosts, and no network between them was given. Give the bandwidth that each "
                "GPU has to it: --network 400Gb, or network='400Gb'"
            )
        hosts, part = -(-ranks // shared), 1.0
        if move.kind == "all_to_all":
            part = (ranks - shared) / (ranks - 1)
        elif move.kind != "p2p":
            part = 1 / shared
        hops = hosts - 1 if move.kind in ("all_gather", "reduce_scatter") else 1
        across = inside.latency + hops * self.between.latency + move.sent * part / self.between.bandwidth
        return max(across, within) if shared > 1 else across

    def _inside(self, kind: str, ranks: int) -> Link:
        """The link of a kind that was measured between so many ranks, or nearly so many.

        Pushes that nobody measured count as hops of a ring.
        """
        links = self.inside.get(kind) or (self.inside.get("p2p") if kind == "push" else None)
        if not links:
            known = ", ".join(self.inside) or "none"
            raise UnsupportedError(f"no {kind} was measured within a host; known: {known}. Give records that have it")
        return links[min(links, key=lambda measured: (abs(log(measured / ranks)), measured))]


def fit_links(measured: Sequence[Transferred]) -> dict[str, dict[int, Link]]:
    """The link of each measured kind and number of ranks.

    The fit is by non-negative least squares on the relative error.
    """
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in measured:
        if row.sent > 0 and row.seconds > 0:
            groups.setdefault((row.kind, row.ranks), []).append((row.calls / row.seconds, row.sent / row.seconds))
    links: dict[str, dict[int, Link]] = {}
    for (kind, ranks), rows in sorted(groups.items()):
        table, ones = np.array(rows), np.ones(len(rows))
        latency, per_byte = non_negative(table, ones)
        if per_byte <= 0:  # sizes that are too much alike to tell the two apart
            latency, per_byte = 0.0, non_negative(table[:, 1:], ones)[0]
        links.setdefault(kind, {})[ranks] = Link(1 / float(per_byte), float(latency))
    return links


@dataclass(frozen=True)
class Rates:
    """The overhead of a call beside its kernels and its collectives.

    Attributes:
        per_byte: Seconds for each byte that is read or written in the device's memory.
        slowdown: Extra seconds of a kernel for each second of an all-to-all, all-gather or reduce-scatter beside it.
            The collective's kernels take many multiprocessors.
        slowdown_p2p: Extra seconds of a kernel for each second of a ring's hop beside it. The hop's kernels
            take few multiprocessors.
        per_phase: Seconds of each phase that launches anything: launches, and waits for other ranks.
    """

    per_byte: float = 0.0
    slowdown: float = 0.0
    slowdown_p2p: float = 0.0
    per_phase: float = 0.0


class Observed(NamedTuple):
    """The seconds of a measured call on the slowest rank, and the values of its `Timeline` without rates."""

    seconds: float
    expected: float
    touched: float
    beside: float
    beside_p2p: float
    phases: float


def fit_rates(observed: Sequence[Observed]) -> Rates:
    """The rates by which calls on one kind of device take longer than their kernels and exposed collectives.

    The fit is by non-negative least squares on the relative error. Large errors weigh less (Huber).
    """
    if not observed:
        return Rates()
    values = np.array(observed, np.float64)
    seconds, expected = values[:, 0], values[:, 1]
    return Rates(*map(float, robust(values[:, 2:] / seconds[:, None], (seconds - expected) / seconds, _NOISE)))


def transferred(mesh: str, communication: Mapping[str, Collected]) -> Iterator[Transferred]:
    """The collectives of a measured call within a host, by kind.

    A record does not name the axis of a kind. If a strategy has several axes, a p2p counts along the last but one, and
    the other kinds along the last. Evidence does not state the bytes that leave a rank either. They are all bytes of a
    p2p and of pushes, and n − 1 of n parts of the other kinds, as in nccl-tests.
    """
    sizes = [int(axis.partition("=")[2]) for axis in mesh.split(",")]
    for kind, moved in communication.items():
        if kind in MOVES:
            ranks = sizes[-2] if kind == "p2p" and len(sizes) > 1 else sizes[-1]
            sent = moved.bytes if kind in ("p2p", "push") else moved.bytes * (ranks - 1) / ranks
            yield Transferred(kind, ranks, moved.calls, sent, moved.seconds)
