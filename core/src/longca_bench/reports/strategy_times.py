"""The times of strategies, forward and backward together as in training, on each problem that was measured.

A problem is one kernel, mask, length, number of ranks and shape. Times are medians over records: draws, and one
placement measured by its name and as the choice of `auto`. A ratio to the kernel alone is taken within one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows

__all__ = ["PROBLEM", "by_problem", "strategy_times", "without_ring"]

#: The columns of a problem, and those of a way to share it.
PROBLEM = ("kernel", "world_size", "heads", "head_dim", "dtype", "seqlen", "mask")
_WAY = ("strategy", "way", "placed")
_AUTO = "auto"


def strategy_times(rows: Rows) -> DataFrame:
    """The time of each way to share each problem, the problems in the order of kernels, ranks, lengths and patterns.

    A strategy of heads and rings without a ring is Ulysses under another name, and is left out. A way that was not
    measured in every direction of these records is left out too.

    Args:
        rows: Records.

    Returns:
        The columns of `PROBLEM`, `strategy`, `way`, `placed`, and: `seconds`, `of_alone` as the share of the throughput
        of the kernel alone, and `is_auto` for a placement that `auto` took.
    """
    measured = rows.where(lambda found: found["strategy"].notna() & (found["status"] == "ok"))
    names = (*PROBLEM, *_WAY, "pattern_place", "mesh", "placement", "direction", "median", "of_alone", "alone_seconds")
    frame = measured.frame(names)
    frame = frame[~frame["mesh"].map(without_ring).astype(bool)]
    frame["placed"] = frame["placed"].fillna(frame["placement"])
    frame["is_auto"] = frame["placement"] == _AUTO
    problem, way = ["pattern_place", *PROBLEM], list(_WAY)
    alone = frame.groupby([*problem, "direction"])["alone_seconds"].median()
    found = frame.groupby([*problem, "direction", *way], sort=False)
    each = found.agg({"median": "median", "of_alone": "median", "is_auto": "max"}).join(alone)
    each["seconds"] = (each["alone_seconds"] / each["of_alone"]).fillna(each["median"])
    each = each.reset_index()
    total = each.groupby([*problem, *way], sort=False).agg(
        seconds=("seconds", "sum"),
        alone=("alone_seconds", lambda values: values.sum(skipna=False)),
        directions=("direction", "nunique"),
        is_auto=("is_auto", "max"),
    )
    total = total.reset_index()
    total = total[total["directions"] == total["directions"].max()]
    total["of_alone"] = total["alone"] / total["seconds"]
    kernels = {kernel: place for place, kernel in enumerate(dict.fromkeys(frame["kernel"]))}
    total["kernel_place"] = total["kernel"].map(kernels.__getitem__)
    order = ["kernel_place", "world_size", "heads", "seqlen", "pattern_place", "mask", "seconds"]
    return total.sort_values(order, kind="stable", ignore_index=True)


def without_ring(mesh: str | None) -> bool:
    """Whether a mesh of several axes has one rank along each but the last."""
    *rings, _ = (axis.partition("=")[2] for axis in (mesh or "=").split(","))
    return bool(rings) and set(rings) == {"1"}


def by_problem(times: DataFrame) -> Iterator[DataFrame]:
    """The ways of each problem, the fastest first."""
    return (found for _, found in times.groupby(list(PROBLEM), sort=False))
