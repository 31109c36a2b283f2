"""The view of choices: for each mask of a suite the way that is predicted fastest on several ranks, and its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longca_bench.reports.table import Cell, Head, Table
from longca_bench.reports.words import times

if TYPE_CHECKING:
    from longca_advice.choices import Choice
    from longca_bench.reports.rows import Rows

__all__ = ["choices"]

_DIRECTIONS = ("forward", "backward")
_UNMEASURED = "unmeasured"


def choices(
    rows: Rows,
    *,
    aim: float,
    lower: Sequence[str] = (),
    lower_aim: float | None = None,
    suite: str = "distributed",
    seqlen: int = 2**17,
    ranks: int = 2,
    device: str = "h200",
    transport: str = "copy_engine",
    lengths: str = "mix",
) -> list[Table]:
    """The share of one GPU alone that the first choice of `longca recommend` reached for each mask, beside its aim.

    Args:
        rows: The records.
        aim: The share of one GPU alone to reach, forward and backward together.
        lower: Masks with another aim.
        lower_aim: Their aim.
        suite: The suite whose masks are asked for, with 64:8 heads of 128 in bfloat16.
        seqlen: Tokens of all ranks.
        ranks: Number of ranks.
        device: The device.
        transport: The transport that `auto` takes between these ranks.
        lengths: The source of document lengths.
    """
    import longca
    from longca import masks
    from longca_bench.suites.suite import load_suite

    shape: dict[str, Any] = {
        "seqlen": seqlen,
        "world_size": ranks,
        "heads_q": 64,
        "heads_kv": 8,
        "head_dim": 128,
        "dtype": "bfloat16",
    }
    known = rows.where(status="ok", seed=0, moved=transport, **shape)
    made = []
    for pattern in dict.fromkeys(name for sweep in load_suite(suite).sweep for name in sweep.patterns):
        mask = masks.sample(pattern, seqlen, lengths=lengths, seed=0)
        found = longca.recommend(mask, heads=(64, 8), device=device, ranks=ranks)
        wanted = lower_aim if pattern in lower and lower_aim is not None else aim
        drawn = known.where(mask_digest=mask.digest)
        made.append((Cell(pattern), *_cells(found.choices[0], drawn, wanted)))
    heads = (
        *(Head(name, left=True, code=True) for name in ("mask", "kernel", "strategy", "placement")),
        *map(Head, (*_DIRECTIONS, "both", "aim")),
        Head("result", left=True),
    )
    return [Table(heads, tuple(made))] if made else []


def _cells(choice: Choice, drawn: Rows, aim: float) -> list[Cell]:
    """The cells of a mask's choice, given the mask's records."""
    way = drawn.where(strategy=choice.strategy, placed=choice.placement, mesh=choice.mesh)
    kernels = zip((choice.forward, choice.backward), _DIRECTIONS, strict=True)
    found = [_measured(way.where(kernel=kernel, direction=direction)) for kernel, direction in kernels]
    lacking = [name for name, each in zip(_DIRECTIONS, found, strict=True) if each is None]
    shares = [_share(each[0] / each[1]) if each is not None else Cell("") for each in found]
    known = [each for each in found if each is not None]
    both = None if lacking else sum(alone for alone, _ in known) / sum(seconds for _, seconds in known)
    if both is None:
        word = _UNMEASURED if len(lacking) == len(_DIRECTIONS) else f"{lacking[0]} {_UNMEASURED}"
    else:
        word = "reached" if both >= aim else "missed"
    named = (Cell(choice.kernel), Cell(str(choice.strategy)), Cell(str(choice.placement)))
    return [*named, *shares, Cell("") if both is None else _share(both), Cell(times(aim)), Cell(word)]


def _measured(found: Rows) -> tuple[float, float] | None:
    """The seconds of the kernel alone and of the ranks, medians over records. None without a record."""
    frame = found.frame(("alone_seconds", "of_alone")).dropna()
    if not len(frame):
        return None
    alone = float(frame["alone_seconds"].median())
    return alone, alone / float(frame["of_alone"].median())


def _share(value: float) -> Cell:
    return Cell(f"{value:.3f}", value)
