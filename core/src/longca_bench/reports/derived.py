"""How the columns that no record has are computed: each function takes all rows and gives one series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longca.manifests.mixes import singles
from longca.plain_text import printable
from longca_bench.reports.words import mask_name, moved_by, shared_by

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows

#: The columns that make up a shape, and those that make up a draw: one mask of one run.
SHAPE = ("direction", "seqlen", "heads_q", "heads_kv", "head_dim", "dtype")
DRAW = ("run_number", "pattern", "mask_digest", "seed", *SHAPE)
_OUTPUTS = ("out", "dq", "dk", "dv")
_NUMBER = re.compile(r"\d+(\.\d+)?")


def texts(rows: Rows, template: str, *names: str) -> Series:
    """Columns put into a template, row by row."""
    return _series(rows, [template.format(*values) for values in zip(*(rows[name] for name in names), strict=True)])


def of_runs(rows: Rows, names: Sequence[str]) -> Series:
    """Of each record: the name of its run, with characters that can be printed."""
    return rows["run_number"].map([printable(name) for name in names].__getitem__)


def mask_names(rows: Rows) -> Series:
    """The name of each mask: its pattern and factors."""
    return _series(rows, [mask_name(pattern, factors) for pattern, factors in _both(rows, "pattern", "factors")])


def factor(rows: Rows, name: str) -> Series:
    """A factor of each mask. It is missing if the suite gives none."""
    return _series(rows, [_number(factors.get(name)) for factors in rows["factors"]], "float64")


def kept_share(rows: Rows) -> Series:
    """The share of blocks that a suite asks for, or else the share of visible pairs."""
    return factor(rows, "kept").fillna(rows["density"])


def whose(rows: Rows) -> Series:
    """The kernel, with its strategy, placement, mesh and transport where it has these."""
    names = ("kernel", "strategy", "placement", "mesh", "transport")
    return _series(rows, [shared_by(*values) for values in zip(*(rows[name] for name in names), strict=True)])


def halves_of(rows: Rows) -> Series:
    """The kernel of each row's direction. For the backward of a pair it is `+` and its second kernel."""
    found = ((kernel, kernel.partition("+")[0], way) for kernel, way in _both(rows, "kernel", "direction"))
    return _series(
        rows, [first if way == "forward" else kernel.removeprefix(first) or first for kernel, first, way in found]
    )


def in_training(rows: Rows, name: str) -> Series:
    """A column of `longca_bench.reports.training.fastest`, for each record of a problem."""
    from longca_bench.reports.training import PROBLEM, fastest

    return _series(rows, list(rows.frame(PROBLEM).merge(fastest(rows), on=PROBLEM, how="left")[name]))


def strategy_and_placement(rows: Rows) -> Series:
    """The strategy and the placement that was asked for. Both are missing for one device."""
    pairs = _both(rows, "strategy", "placement")
    return _series(rows, [None if strategy is None else f"{strategy} {placement}" for strategy, placement in pairs])


def pattern_place(rows: Rows) -> Series:
    """The place of each pattern in the registry. Unknown patterns come last."""
    from longca.masks import PATTERNS

    places = {pattern: place for place, pattern in enumerate(PATTERNS)}
    return rows["pattern"].map(lambda pattern: places.get(pattern, len(places)))


def scaled(rows: Rows, field: str, by: float) -> Series:
    """A field in another unit."""
    return rows[field].astype("float64") * by


def over_base(rows: Rows, base: str) -> Series:
    """Each row's throughput over that of a kernel on the same draw, if both were measured."""
    bases = rows.where(kernel=base, status="ok", strategy=None).frame((*DRAW, "tflops"))
    last = bases.groupby(list(DRAW), sort=False)["tflops"].last().rename("base").reset_index()
    found = rows.frame(DRAW).merge(last, on=list(DRAW), how="left")["base"].to_numpy()
    return _tflops(rows) / found


def over_full(rows: Rows, base: str) -> Series:
    """Each row's throughput over [a kernel's on full attention in its run × the draw's tile efficiency]."""
    key = ["run_number", *SHAPE]
    bases = rows.where(kernel=base, pattern="full", status="ok", strategy=None).frame((*key, "tflops"))
    reached = bases.groupby(key, sort=False)["tflops"].median().rename("full").reset_index()
    full = rows.frame(key).merge(reached, on=key, how="left")["full"].to_numpy()
    return _tflops(rows) / (full * rows["tile_efficiency"])


def ratio(rows: Rows, over: str) -> Series:
    """A field's seconds over each row's median time, if the row was measured."""
    return rows[over] / rows["median"].where(rows["status"] == "ok")


def alone_rate(rows: Rows, field: str) -> Series:
    """Throughput of one device in a field's seconds, which are those of one rank's share of the work."""
    seconds = rows[field].where(rows["status"] == "ok")
    return rows["flops"] / rows["world_size"].fillna(1).astype("int64") / seconds / 1e12


def communicated(rows: Rows, what: str, by: float = 1.0) -> Series:
    """A figure of all of a row's collectives without kernels. It is missing if nothing is sent."""
    return _series(rows, [each["all"][what] * by if each else None for each in rows["communication"]], "float64")


def of_gpu(rows: Rows, what: str) -> Series:
    """A figure of the GPU, read after a case's last call. It is missing for a CPU."""
    return _series(rows, [found.get(what) if found else None for found in rows["gpu"]], "float64")


def slowest(rows: Rows, field: str, by: float) -> Series:
    """The longest of all ranks' seconds in another unit. It is missing for one device."""
    return _series(rows, [max(each) * by if each else None for each in rows[field]], "float64")


def hidden_share(rows: Rows) -> Series:
    """The share of communication that is hidden. It is missing where `says_hidden` is not."""
    return rows["hidden"].astype("float64").where(_says_hidden(rows))


def hidden_end(rows: Rows, end: int) -> Series:
    """An end of the interval of the hidden share. It is missing where there is no interval, or no share to say."""
    ends = _series(rows, [each[end] if each else None for each in rows["hidden_interval"]], "float64")
    return ends.where(_says_hidden(rows))


def says_hidden(median: Any, computing: Sequence[float]) -> bool:
    """Whether a share of hidden communication says anything. It does not if computing alone took longer than the whole.

    Args:
        median: Seconds of the whole, or None.
        computing: Seconds of each rank's kernel calls alone.
    """
    return not (computing and median is not None and max(computing) > median)


def largest_error(rows: Rows, field: str) -> Series:
    """The largest error of the output or of a gradient."""
    return _series(rows, [_largest(findings) for findings in rows[field]], "float64")


def mesh_words(rows: Rows) -> Series:
    """The strategy, with the sizes of several axes, their names where orders differ, and the transport asked for."""
    pairs = list(_both(rows, "strategy", "mesh"))
    orders: dict[Any, set[tuple[str, ...]]] = {}
    for strategy, mesh in pairs:
        orders.setdefault(strategy, set()).add(_axes(mesh)[0])
    ways = [None if s is None else _way(s, mesh, len(orders[s]) > 1) for s, mesh in pairs]
    asked = zip(ways, rows["transport"], strict=True)
    return _series(rows, [way and moved_by(way, name if isinstance(name, str) else None) for way, name in asked])


def transport_words(rows: Rows) -> Series:
    """The transports that were taken: one, or one for each axis. Missing on one device and in earlier records."""
    return _series(rows, [_transports(moved) for moved in rows["moved_by"]])


def _transports(moved: Any) -> str | None:
    if not isinstance(moved, str) or not moved:
        return None
    taken = {part.partition("=")[2] for part in re.split(r"[,|]", moved)}
    return taken.pop() if len(taken) == 1 else moved


def placement_words(rows: Rows) -> Series:
    """The placement that was asked for, and the choice of `auto`."""
    words = (
        asked if placed in (None, asked) else f"{asked}: {placed}"
        for asked, placed in _both(rows, "placement", "placed")
    )
    return _series(rows, list(words))


def alike(rows: Rows) -> Series:
    """Each message without its numbers and the name of its mask, so that reasons of one kind are one."""
    said = ("#".join(message.rsplit(pattern, 1)) for message, pattern in _both(rows, "message", "pattern"))
    return _series(rows, [_NUMBER.sub("#", message) for message in said])


def elsewhere(rows: Rows) -> Series:
    """Whether the kernel of a row runs on other devices only, as the environment of its run says."""
    names = [(run.environment or {}).get("elsewhere") for run in rows.runs]
    apart = [frozenset(map(str, some)) if isinstance(some, list) else frozenset() for some in names]
    return _series(
        rows,
        [not apart[run].isdisjoint(singles(kernel)) for run, kernel in _both(rows, "run_number", "kernel")],
        "bool",
    )


def interval_end(rows: Rows, end: str) -> Series:
    """An end of the interval of each median, in milliseconds. It is missing if there are too few samples."""
    from longca_bench.reports.intervals import median_bounds

    return _series(rows, median_bounds(rows["samples"])[:, ("low", "high").index(end)] * 1e3)


def _series(rows: Rows, values: Any, dtype: str | None = None) -> Series:
    from pandas import Series

    return Series(values, index=rows.index, dtype=dtype)


def _says_hidden(rows: Rows) -> Series:
    return _series(rows, [says_hidden(*each) for each in _both(rows, "median", "rank_compute_seconds")], "bool")


def _both(rows: Rows, one: str, other: str) -> Any:
    return zip(rows[one], rows[other], strict=True)


def _tflops(rows: Rows) -> Series:
    return rows["tflops"].where((rows["status"] == "ok") & (rows["tflops"] > 0))


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) else None


def _largest(findings: Any) -> float | None:
    errors = [found["error"] for found in findings if found["tensor"] in _OUTPUTS]
    return max((error for error in errors if isinstance(error, float)), default=None)


def _axes(mesh: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of a mesh, and their sizes."""
    pairs = [axis.partition("=") for axis in (mesh or "").split(",")]
    return tuple(name for name, _, _ in pairs), tuple(size for _, _, size in pairs)


def _way(strategy: str, mesh: str | None, several: bool) -> str:
    _, sizes = _axes(mesh)
    if several:
        return f"{strategy} {mesh}"
    return f"{strategy} {'×'.join(sizes)}" if len(sizes) > 1 else strategy
