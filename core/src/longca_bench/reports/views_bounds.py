"""The view of bounds: the share of one GPU alone that a strategy reaches, and that its kernel has without transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longca_bench.reports.table import Cell, Head, Table

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["bounds"]

_CASE = ("run", "mask", "seqlen", "kernel", "way", "placed")
_HEADS = ("run", "mask", "strategy")
#: The column of milliseconds of each share, by the share's head.
_PARTS = {"share": "ms", "kernel abreast": "abreast_ms", "calls alone": "compute_ms"}


def bounds(rows: Rows) -> list[Table]:
    """The time of one GPU alone over that of the whole, of the kernel on all GPUs at once, and of its calls alone.

    Each is for the forward and the backward together, by the slowest rank. Cases without both directions are left out.

    Args:
        rows: The records.
    """
    measured = rows.where(status="ok")
    frame = measured.frame((*_CASE, "direction", "alone_seconds", *_PARTS.values())).dropna()
    lines = []
    for (run, mask, _, _, way, _), part in frame.groupby(list(_CASE), sort=False):
        if sorted(part["direction"]) != ["backward", "forward"]:
            continue
        alone = 1e3 * float(part["alone_seconds"].sum())
        shares = [alone / float(part[name].sum()) for name in _PARTS.values()]
        lines.append((Cell(run), Cell(mask), Cell(way), *(Cell(f"{share:.3f}", share) for share in shares)))
    heads = (*(Head(name, left=True, code=True) for name in _HEADS), *map(Head, _PARTS))
    return [Table(heads, tuple(lines))] if lines else []
