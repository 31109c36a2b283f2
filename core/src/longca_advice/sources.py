"""Sources: the evidence that answers a question, with its cost model and the links that it measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median

from longca.manifests.schedule import MOVES
from longca_advice.costs import CostModel
from longca_advice.evidence import Row, shipped
from longca_advice.from_records import verified
from longca_advice.history import History, history
from longca_advice.network import Link, Network, Observed, Rates, fit_links, fit_rates, transferred

__all__ = ["Links", "Sources", "sources"]


@dataclass(frozen=True)
class Links:
    """The links between ranks, the overhead of calls, and the measured seconds by `Row.shared_call` and kernel."""

    network: Network
    rates: Rates
    per_host: int
    measured: Mapping[Hashable, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Sources:
    """Evidence. An instance equals only itself, so that models can be cached by it."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    here: History = field(default_factory=History)

    def disturbed(self, device: str) -> list[str]:
        """A sentence on the kernels of a device whose times are all from a busy machine."""
        found = sorted({row.kernel for row in self.rows if row.busy and row.run.device == device})
        if not found:
            return []
        many = "the machine was busy in all measurements that there are"
        return [f"{many} of {', '.join(found)} on {device}; `longca run --wait-idle SECONDS` waits for a quiet moment"]

    @cached_property
    def costs(self) -> CostModel:
        """The cost model of all rows. It keeps its fits."""
        return CostModel(self.rows)

    def links(self, device: str, per_host: int, between: Link | None = None, within: Link | None = None) -> Links:
        """The links of ranks, from the collectives and the calls that rows measured on devices of that name.

        A link within a host takes the place of the measured ones.
        """
        return _links(self, device, per_host, between, within)


@lru_cache(maxsize=16)
def _links(found: Sources, device: str, per_host: int, between: Link | None, within: Link | None) -> Links:
    rows = [row for row in found.rows if row.run.device == device]
    moved = [one for row in rows if row.mesh is not None for one in transferred(row.mesh, row.communication)]
    rates = fit_rates([Observed(row.seconds, *row.observed) for row in rows if row.observed])
    if within is not None:
        return Links(Network({kind: {per_host: within} for kind in MOVES}, between), rates, per_host)
    return Links(Network(fit_links(moved), between), rates, per_host, _measured(rows))


def _measured(rows: Iterable[Row]) -> dict[Hashable, dict[str, float]]:
    """The median seconds of each measured call of a strategy, by its kernel."""
    found: dict[Hashable, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.shared_call is not None:
            found[row.shared_call][row.kernel].append(row.seconds)
    return {call: {name: median(each) for name, each in kernels.items()} for call, kernels in found.items()}


def sources(records: tuple[str, ...] = ()) -> Sources:
    """All evidence: shipped, measured here, and in folders of runs. It is cached until this machine's evidence changes.

    Raises:
        RequestError: A folder holds no run, or a line is no record.
    """
    return _collected(history(), records)


@lru_cache(maxsize=4)
def _collected(here: History, records: tuple[str, ...]) -> Sources:
    named = [row for folder in records for row, _ in verified(Path(folder))]
    found = [(row, here.verdict_on(row.kernel, row.run.device, row.version)) for row in (*shipped(), *named)]
    left_out = Counter(f"{row.kernel} of {row.version}" for row, verdict in found if verdict)
    notes = [f"left out of this machine's evidence: {text}" for text in here.notes]
    notes += [
        f"left out: {count} measurements of {kernel} elsewhere, because this machine found it wrong or suspect"
        for kernel, count in left_out.items()
    ]
    rows = (*(row for row, verdict in found if verdict is None), *here.rows)
    return Sources(tuple(_quiet(rows)), tuple(notes), here)


def _quiet(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows without the times of a busy machine, where the kernel has others on the device in that direction."""

    def subject(row: Row) -> Hashable:
        return row.kernel, row.run.device, row.direction, row.strategy is None

    quiet = {subject(row) for row in rows if not row.busy}
    yield from (row for row in rows if not row.busy or subject(row) not in quiet)
