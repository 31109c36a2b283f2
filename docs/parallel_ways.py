"""Records of several ranks in the settings that the page's tables are of, by mask and by how ranks share it.

A draw is one mask of one run. A ratio is of times in one record, and medians are over records: draws, and the same
placement measured as itself and as what `auto` came to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from longca.masks import PATTERNS
from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import mask_name, tokens, word
from longca_bench.reports.run_source import Run
from longca_cp.placement import Placement

AUTO = "auto"
DIRECTIONS = ("forward", "backward")
_SHAPE = ("heads_q", "heads_kv", "head_dim", "dtype")


@dataclass(frozen=True)
class Way:
    """How ranks share a mask.

    Attributes:
        strategy: Name of the strategy.
        mesh: Ranks along its axes, such as `ring=2,ulysses=2`.
        placement: How tokens are placed.
    """

    strategy: str
    mesh: str
    placement: str

    @property
    def words(self) -> str:
        """The strategy, and the mesh where there are several axes."""
        return f"`{self.strategy}`{self.sizes}"

    @property
    def sizes(self) -> str:
        """The mesh where there are several axes."""
        axes = [axis.split("=") for axis in self.mesh.split(",")]
        if len(axes) < 2:
            return ""
        return " " + ", ".join(f"{name} {size}" for name, size in axes)

    @property
    def strategy_and_placement(self) -> str:
        """The strategy and the placement."""
        return f"`{self.strategy}` {self.placement}"

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Ranks along each axis."""
        return {name: int(size) for name, size in (axis.split("=") for axis in self.mesh.split(","))}

    @property
    def has_no_ring(self) -> bool:
        """Whether a strategy of heads and rings has one rank along each of its rings: what is left of it is ulysses."""
        *rings, _ = self.axis_sizes.values()
        return bool(rings) and set(rings) == {1}


def way_of(record: Record) -> Way:
    """How a record's ranks shared its mask: by the placement that `auto` came to, where that is known."""
    assert record.strategy is not None
    return Way(record.strategy, record.mesh or "", record.placed or record.placement or "")


def of_alone(record: Record) -> float | None:
    """The time of the kernel on one device with as much work as a rank's, over that of the ranks."""
    if record.status != "ok" or not record.median or record.alone_seconds is None:
        return None
    return record.alone_seconds / record.median


def limit_tflops(name: str, record: Record) -> float | None:
    """Throughput of a device in what no strategy is faster than: the name is that of the record's field of seconds."""
    seconds: float | None = getattr(record, name)
    if seconds is None or record.status != "ok":
        return None
    return record.flops / (record.world_size or 1) / seconds / 1e12


@dataclass(frozen=True)
class Setting:
    """The records of one kernel, length, number of ranks and shape.

    Attributes:
        kernel: The kernel.
        seqlen: Tokens of all ranks.
        ranks: How many there are.
        shape: Heads and head dimension, in words.
        records: Its records.
    """

    kernel: str
    seqlen: int
    ranks: int
    shape: str
    records: tuple[Record, ...]

    @property
    def title(self) -> str:
        """A heading's text."""
        return f"`{self.kernel}`, {tokens(self.seqlen)} tokens on {self.ranks} ranks, {self.shape}"

    @cached_property
    def masks(self) -> list[str]:
        """Names of the masks, in the registry's order of patterns."""
        ordered = sorted(self.records, key=lambda record: list(PATTERNS).index(record.pattern))
        return list(dict.fromkeys(_mask(record) for record in ordered))

    @cached_property
    def ways(self) -> list[Way]:
        """What was asked of ranks, strategy by strategy; those of which nothing was measured are left out."""
        found = dict.fromkeys(way_of(record) for record in self.records if record.status != "unsupported")
        strategies = list(dict.fromkeys((way.strategy, way.mesh) for way in found))
        places = [*Placement]
        return sorted(
            found,
            key=lambda way: (
                strategies.index((way.strategy, way.mesh)),
                places.index(way.placement) if way.placement in places else len(places),
            ),
        )

    @cached_property
    def _found(self) -> dict[tuple[str, str], dict[Way, list[Record]]]:
        """The records by mask and direction, and then by way."""
        found: dict[tuple[str, str], dict[Way, list[Record]]] = {}
        for record in self.records:
            of_mask = found.setdefault((_mask(record), record.direction), {})
            of_mask.setdefault(way_of(record), []).append(record)
        return found

    def of(self, mask: str, direction: str, way: Way | None = None) -> list[Record]:
        """The records of a mask and direction, and of a way, where one is given."""
        by_way = self._found.get((mask, direction), {})
        return [record for records in by_way.values() for record in records] if way is None else by_way.get(way, [])

    def median(
        self, value: Callable[[Record], float | None], mask: str, direction: str, way: Way | None = None
    ) -> float | None:
        """The median of something over a mask's records; None where none has it."""
        found = [value(record) for record in self.of(mask, direction, way)]
        known = [each for each in found if each is not None]
        return median(known) if known else None

    def chosen(self, mask: str, direction: str, way: Way) -> bool:
        """Whether a way's placement is what `auto` came to."""
        return any(record.placement == AUTO and record.placed is not None for record in self.of(mask, direction, way))

    def word(self, mask: str, direction: str, way: Way) -> str:
        """What happened instead, where nothing was measured; nothing where it was not asked."""
        return " ".join(dict.fromkeys(word(record.status) for record in self.of(mask, direction, way)))


def _mask(record: Record) -> str:
    return mask_name(record.pattern, record.factors)


def settings(runs: Sequence[Run]) -> list[Setting]:
    """A setting a kernel, length, number of ranks and shape; kernels as they were measured, then the shorter first."""
    records = [record for run in runs for record in run.records if record.strategy is not None]
    kernels = list(dict.fromkeys(record.kernel for record in records))
    found: dict[tuple[int, int, int, tuple[object, ...]], list[Record]] = {}
    for record in records:
        shape = tuple(getattr(record, name) for name in _SHAPE)
        key = kernels.index(record.kernel), record.world_size or 1, record.seqlen, shape
        found.setdefault(key, []).append(record)
    return [_setting(found[key]) for key in sorted(found)]


def _setting(records: Sequence[Record]) -> Setting:
    some = records[0]
    shape = f"{some.heads_q}:{some.heads_kv} heads of {some.head_dim}"
    return Setting(some.kernel, some.seqlen, some.world_size or 1, shape, tuple(records))


def largest(found: Sequence[Setting]) -> Iterator[Setting]:
    """Of each kernel and number of ranks the longest setting."""
    for kernel, ranks in dict.fromkeys((setting.kernel, setting.ranks) for setting in found):
        yield max((s for s in found if (s.kernel, s.ranks) == (kernel, ranks)), key=lambda s: s.seqlen)
