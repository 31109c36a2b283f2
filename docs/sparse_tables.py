"""Tables of throughput on block-sparse masks, and the ratios between kernels, blocks and heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from measured_groups import Draw, groups, throughput
from measured_page import table

from longca.masks import PATTERNS
from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import three_digits, tokens
from longca_bench.reports.run_source import Run

#: The length and the share kept that ratios between kernels are of.
SEQLEN, KEPT = 2**15, 0.5
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Side:
    """One side of a ratio: a kernel on blocks of some size, or on variable ones where that is None."""

    kernel: str
    block: int | None
    heads: str
    seqlen: int = SEQLEN

    @property
    def words(self) -> str:
        """A cell's text."""
        return f"`{self.kernel}`, {block_words(self.block)}, {self.heads}"

    def tflops(self, run: Run, direction: str, kept: float = KEPT) -> float | None:
        """Throughput in a run, the median over seeds; None where it was not measured."""
        asked = self.seqlen, direction, self.kernel, self.block, kept, self.heads
        found = [r.tflops for r in block_sparse(run) if r.tflops and _key(r) == asked]
        return median(found) if found else None


_GQA, _MHA = "64:8", "64:64"
_RATIOS = (
    (Side("fa4", 128, _GQA), Side("vsa", 64, _MHA)),
    (Side("bsa", 64, _GQA), Side("vsa", 64, _MHA)),
    (Side("bsa", 64, _GQA), Side("vsa_triton", 64, _MHA)),
    (Side("bsa", 64, _MHA), Side("vsa", 64, _MHA)),
    (Side("bsa", 64, _MHA), Side("vsa_triton", 64, _MHA)),
    (Side("bsa", None, _GQA), Side("bsa", 128, _GQA)),
    (Side("bsa", None, _MHA), Side("bsa", 128, _MHA)),
)


def block_words(block: int | None) -> str:
    """Blocks of a size, in words."""
    return "variable blocks" if block is None else f"blocks of {block}"


def heads_of(record: Record) -> str:
    """Query heads and KV heads, such as `64:8`."""
    return f"{record.heads_q}:{record.heads_kv}"


def block_sparse(run: Run) -> Iterator[Record]:
    """A run's records that were measured on block-sparse masks."""
    return (record for record in run.records if record.status == "ok" and PATTERNS[record.pattern].per_head)


def block_of(record: Record) -> int | None:
    """Tokens a block; None where blocks differ."""
    block = record.factors.get("block")
    return block if isinstance(block, int) else None


def kept_of(record: Record) -> float:
    """The share of blocks that its suite asks for; the share of pairs where it asks for none."""
    kept = record.factors.get("kept")
    return kept if isinstance(kept, float) else record.density


def _key(record: Record) -> tuple[object, ...]:
    return record.seqlen, record.direction, record.kernel, block_of(record), kept_of(record), heads_of(record)


def throughput_tables(runs: Sequence[Run]) -> str:
    """A table a direction, length and shape: masks by kernels, TFLOP/s."""
    found = (group for group in groups(runs, per_head=True) if group.kernels)
    return "\n\n".join(f"### {group.title}\n\n{throughput(group, _ABOUT)}" for group in found)


def _of(draws: Sequence[Draw]) -> Record:
    return next(iter(draws[0].values()))


#: What a table of throughput says of a mask before its figures.
_ABOUT: dict[str, Callable[[str, Sequence[Draw]], str]] = {
    "blocks": lambda _, draws: str(block_of(_of(draws)) or "variable"),
    "kept": lambda _, draws: f"{kept_of(_of(draws)):.0%}",
    "runs": lambda _, draws: str(len(draws)),
}


def ratio(runs: Sequence[Run], over: Side, under: Side, direction: str, kept: float = KEPT) -> float | None:
    """The median over runs of one side's throughput over the other's in the same run."""
    found = [pair[0] / pair[1] for pair in _pairs(runs, over, under, direction, kept)]
    return median(found) if found else None


def _pairs(runs: Sequence[Run], over: Side, under: Side, direction: str, kept: float) -> list[tuple[float, float]]:
    both = ((over.tflops(run, direction, kept), under.tflops(run, direction, kept)) for run in runs)
    return [(a, b) for a, b in both if a and b]


def _ratio_cell(runs: Sequence[Run], over: Side, under: Side, direction: str, kept: float = KEPT) -> str:
    return ratio_words(_pairs(runs, over, under, direction, kept))


def ratio_words(pairs: Sequence[tuple[float, float]]) -> str:
    """The median ratio of pairs of throughputs and, in brackets, the median of each side."""
    if not pairs:
        return "–"
    a, b = (three_digits(median(values)) for values in zip(*pairs, strict=True))
    return f"{median(x / y for x, y in pairs):.2f} ({a} / {b})"


def ratios(runs: Sequence[Run]) -> str:
    """The ratios between kernels at SEQLEN tokens, half kept, with the throughputs that they are of."""
    body = [
        [over.words, under.words, *(_ratio_cell(runs, over, under, direction) for direction in DIRECTIONS)]
        for over, under in _RATIOS
    ]
    return table(["throughput of", "over that of", *DIRECTIONS], body, left=(0, 1))


def small_blocks(runs: Sequence[Run], kernel: str) -> str:
    """How much faster a kernel is with blocks of 128 than with blocks of 64, by length, heads and share kept."""
    records = [record for run in runs for record in block_sparse(run) if record.kernel == kernel]
    shares = sorted({kept_of(record) for record in records})
    body = []
    for seqlen in sorted({record.seqlen for record in records}):
        for heads in (_GQA, _MHA):
            for kept in shares:
                over, under = (Side(kernel, block, heads, seqlen) for block in (128, 64))
                cells = [_ratio_cell(runs, over, under, direction, kept) for direction in DIRECTIONS]
                if set(cells) != {"–"}:
                    body.append([tokens(seqlen), heads, f"{kept:.0%}", *cells])
    return table(["tokens", "heads", "kept", *DIRECTIONS], body)
