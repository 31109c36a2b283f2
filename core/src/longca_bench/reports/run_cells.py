"""What the tables of a run say, whatever they are drawn with: rows of masks, cells of kernels, and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longca_bench.measuring.records import Record

__all__ = [
    "Failure",
    "Row",
    "cell",
    "counts",
    "failures",
    "idle",
    "mask_name",
    "rows",
    "shape_cells",
    "shape_columns",
    "three_digits",
    "throughput_unit",
    "tokens",
    "unsupported",
    "who",
    "word",
]


#: What shapes are told apart by, where a table has several, as its columns call it.
_SHAPE: dict[str, Callable[[Record], str]] = {
    "heads": lambda record: f"{record.heads_q}:{record.heads_kv}",
    "dim": lambda record: str(record.head_dim),
    "dtype": lambda record: record.dtype,
    "seed": lambda record: str(record.seed),
}


@dataclass(frozen=True)
class Row:
    """The records of one mask and shape.

    Attributes:
        records: By kernel.
        fastest: Least time that was measured, where several were; a `suspect` one is never ranked.
    """

    records: dict[str, Record]
    fastest: float | None

    def about(self, shape: Iterable[str] = ()) -> list[str]:
        """What the columns before the kernels' say.

        Args:
            shape: What `shape_columns` says of the table.

        Returns:
            Mask, tokens, the shape's columns, density and tile efficiency.
        """
        some = next(iter(self.records.values()))
        mask = [mask_name(some.pattern, some.factors), tokens(some.seqlen)]
        return [*mask, *shape_cells(some, shape), f"{some.density:.1%}", f"{some.tile_efficiency:.0%}"]


@dataclass(frozen=True)
class Failure:
    """Cases of one kernel that failed alike.

    Attributes:
        status: How.
        kernel: Whose; with its strategy and placement, where it has some.
        message: Why.
        advice: What to do about it.
        cases: How many.
    """

    status: str
    kernel: str
    message: str
    advice: str
    cases: int

    @property
    def count(self) -> str:
        """How many, in words."""
        return "1 case" if self.cases == 1 else f"{self.cases} cases"


def rows(records: Iterable[Record]) -> list[Row]:
    """Rows of one direction, in the order in which they were measured."""
    found: dict[tuple[object, ...], dict[str, Record]] = {}
    for r in records:
        shape = (r.seqlen, r.pattern, r.mask_digest, r.heads_q, r.heads_kv, r.head_dim, r.dtype, r.seed)
        found.setdefault(shape, {})[r.kernel] = r
    return [Row(cells, _fastest(cells.values())) for cells in found.values()]


def shape_columns(records: Sequence[Record]) -> list[str]:
    """The columns that tell shapes apart: of heads, head dimension, dtype and seed those that vary."""
    return [name for name, show in _SHAPE.items() if len({show(record) for record in records}) > 1]


def shape_cells(record: Record, shape: Iterable[str]) -> list[str]:
    """What a record says in the columns of `shape_columns`."""
    return [_SHAPE[name](record) for name in shape]


def mask_name(pattern: str, factors: Mapping[str, Any]) -> str:
    """A mask as tables name it: its pattern, and the values of the factors that its suite gives."""
    shown = ", ".join(_brief(name, value) for name, value in factors.items())
    return f"{pattern} {shown}" if shown else pattern


def _brief(name: str, value: Any) -> str:
    if name == "kept":
        return f"{value * 100:g} %"
    return f"{len(value)} {name}" if isinstance(value, tuple | list) else str(value)


def cell(record: Record, factor: float) -> str:
    """Time in ms and throughput, or the word for what happened instead; `?` after what is suspect."""
    if record.median is None or record.tflops is None:
        return word(record.status)
    doubt = "?" if record.status == "suspect" else ""
    return f"{three_digits(record.median * 1e3)}{doubt} {three_digits(record.tflops * factor):>5}"


def who(record: Record) -> str:
    """The kernel, and how ranks share it, where several do."""
    if record.strategy is None:
        return record.kernel
    return f"{record.kernel} with {record.strategy} {record.placement}, {record.mesh}"


def word(status: str) -> str:
    """A status as tables and charts show it."""
    return "–" if status == "unsupported" else status.upper()


def failures(records: Iterable[Record]) -> list[Failure]:
    """What is neither measured nor unsupported, each message of a kernel once."""
    failed = (r for r in records if r.status not in ("ok", "unsupported"))
    found = Counter((r.status, who(r), r.message, r.advice) for r in failed)
    return [Failure(*about, cases) for about, cases in sorted(found.items(), key=lambda item: item[0][0])]


def idle(records: Sequence[Record]) -> list[str]:
    """Kernels that take nothing of a run, on its device and with what is installed there."""
    busy = {record.kernel for record in records if record.status != "unsupported"}
    return [kernel for kernel in dict.fromkeys(record.kernel for record in records) if kernel not in busy]


def unsupported(records: Iterable[Record]) -> Iterator[tuple[str, list[str]]]:
    """Each kernel with the patterns it does not take; and how many of their cases, where it takes some."""
    cases: dict[str, Counter[str]] = {}
    refused: dict[str, Counter[str]] = {}
    for record in records:
        cases.setdefault(record.kernel, Counter())[record.pattern] += 1
        if record.status == "unsupported":
            refused.setdefault(record.kernel, Counter())[record.pattern] += 1
    for kernel, patterns in refused.items():
        whole = cases[kernel]
        yield (
            kernel,
            [
                pattern if count == whole[pattern] else f"{pattern} ({count} of {whole[pattern]} cases)"
                for pattern, count in patterns.items()
            ],
        )


def counts(records: Sequence[Record]) -> str:
    """How many cases there are, by status."""
    found = Counter(record.status for record in records)
    cases = "1 case" if len(records) == 1 else f"{len(records)} cases"
    return f"{cases}: " + ", ".join(f"{count} {status}" for status, count in found.items())


def throughput_unit(records: Iterable[Record]) -> tuple[str, float]:
    """TFLOP/s, or GFLOP/s where nothing reaches one TFLOP/s; and how many of it are a TFLOP/s."""
    best = max((record.tflops for record in records if record.tflops is not None), default=1.0)
    return ("TFLOP/s", 1.0) if best >= 1 else ("GFLOP/s", 1e3)


def tokens(seqlen: int) -> str:
    """A length in K where that is exact."""
    return f"{seqlen // 1024} K" if seqlen % 1024 == 0 else str(seqlen)


def three_digits(value: float) -> str:
    """Three significant digits, never an exponent."""
    for bound, digits in ((0.0995, 4), (0.995, 3), (9.95, 2), (99.5, 1)):
        if value < bound:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def _fastest(records: Iterable[Record]) -> float | None:
    times = [record.median for record in records if record.median is not None and record.status == "ok"]
    return min(times) if len(times) > 1 else None
