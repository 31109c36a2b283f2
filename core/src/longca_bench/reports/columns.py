"""The columns of reports: a head, a format and a legend for each, and the function of each derived column.

To add a column, add an entry to `COLUMNS`. Fields of records are columns without an entry. An entry gives them a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from longca.manifests.pairs import singles
from longca.plain_text import dims_text, printable
from longca_bench.reports.words import (
    brief_percent,
    counted,
    mask_name,
    moved_by,
    ratio_text,
    shared_by,
    three_digits,
    times,
    tokens,
)

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows

__all__ = ["BASELINE", "COLUMNS", "Column", "column", "largest_error"]

#: The kernel that `over_baseline` divides by.
BASELINE = "flex"
_SHAPE = ("direction", "seqlen", "heads_q", "heads_kv", "head_dims", "dtype")
_DRAW = ("run_number", "pattern", "mask_digest", "seed", *_SHAPE)
_OUTPUTS = ("out", "dq", "dk", "dv")
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: Its name in views.
        head: Its head in tables. Empty for the name.
        format: How a value reads.
        left: Whether it is text, which is aligned to the left.
        code: Whether Markdown shows its values as code.
        wrap: Whether its values are sentences.
        drop: When a narrow terminal leaves it out: the highest first, and never at 0.
        derive: The function that computes it from other columns. None for a field of the record.
        about: A legend. Empty if the head needs none.
    """

    name: str
    head: str = ""
    format: Callable[[Any], str] = str
    left: bool = False
    code: bool = False
    wrap: bool = False
    drop: int = 0
    derive: Callable[[Rows], Series] | None = None
    about: str = ""


def column(name: str) -> Column:
    """A column by its name. A field without an entry has its name as its head; its numbers have three digits."""
    return COLUMNS.get(name) or Column(name, name.rpartition(".")[2], _plain)


def largest_error(findings: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest error of the output or of a gradient."""
    errors = [found["error"] for found in findings if found["tensor"] in _OUTPUTS]
    return max((error for error in errors if isinstance(error, float)), default=None)


def _plain(value: Any) -> str:
    return str(value) if not isinstance(value, float) else f"{value:.0f}" if value.is_integer() else three_digits(value)


def _series(rows: Rows, values: Any, dtype: str | None = None) -> Series:
    from pandas import Series

    return Series(values, index=rows.index, dtype=dtype)


def _by_row(function: Callable[..., Any], *names: str, dtype: str | None = None) -> Callable[[Rows], Series]:
    """A column that a function computes from other columns, row by row."""

    def derive(rows: Rows) -> Series:
        return _series(rows, [function(*values) for values in zip(*(rows[name] for name in names), strict=True)], dtype)

    return derive


def _head_dims(dim: int, dim_v: Any, softcap: Any, sinks: bool) -> str:
    """The head dimensions, with the soft cap and the sinks if there are any. Absent values are pandas' own."""
    dims = str(dim) if str(dim_v) == "<NA>" else dims_text(dim, dim_v)
    cap = "" if str(softcap) in ("<NA>", "nan", "None") else f", soft cap {softcap:g}"
    return dims + cap + ", sinks" * sinks


def _scaled(field: str, by: float) -> Callable[[Rows], Series]:
    return lambda rows: rows[field].astype("float64") * by


def _run_name(rows: Rows) -> Series:
    """The name of each row's run, with characters that can be printed."""
    return rows["run_number"].map([printable(run.folder.name) for run in rows.runs].__getitem__)


def _in_training(name: str) -> Callable[[Rows], Series]:
    """A column of `longca_bench.reports.training.fastest`, for each record of a problem."""

    def derive(rows: Rows) -> Series:
        from longca_bench.reports.training import PROBLEM, fastest

        return _series(rows, list(rows.frame(PROBLEM).merge(fastest(rows), on=PROBLEM, how="left")[name]))

    return derive


def _pattern_place(rows: Rows) -> Series:
    """The place of each pattern in the registry. Unknown patterns come last."""
    from longca.masks import PATTERNS

    places = {pattern: place for place, pattern in enumerate(PATTERNS)}
    return rows["pattern"].map(lambda pattern: places.get(pattern, len(places)))


def _half(kernel: str, direction: str) -> str:
    """The kernel of a direction. For the backward of a pair it is `+` and its second kernel."""
    first = kernel.partition("+")[0]
    return first if direction == "forward" else kernel.removeprefix(first) or first


def _interval_end(rows: Rows, end: int) -> Series:
    """An end of the interval of each median, in milliseconds. It is missing if there are too few samples."""
    from longca_bench.reports.intervals import median_bounds

    return _series(rows, median_bounds(rows["samples"])[:, end] * 1e3)


def _over(rows: Rows, names: Sequence[str], **base: Any) -> Series:
    """Each row's throughput over the median of base rows that agree in the named columns."""
    bases = rows.where(status="ok", strategy=None, **base).frame((*names, "tflops"))
    found = bases.groupby(list(names), sort=False)["tflops"].median().rename("base").reset_index()
    speed = rows["tflops"].where((rows["status"] == "ok") & (rows["tflops"] > 0))
    return speed / rows.frame(names).merge(found, on=list(names), how="left")["base"].to_numpy()


def _of_single_gpu(rows: Rows, field: str) -> Series:
    """Seconds of one device with as much work over each row's time, if the row was measured."""
    return rows[field] / rows["median"].where(rows["status"] == "ok")


def _communicated(what: str, by: float = 1.0) -> Callable[[Rows], Series]:
    """A figure of all of a row's collectives without kernels. It is missing if nothing is sent."""
    return _by_row(lambda found: found["all"][what] * by if found else None, "communication", dtype="float64")


def _is_hidden(rows: Rows) -> Series:
    """Whether a share of hidden communication says anything. It does not if computing took longer than the whole."""
    return _by_row(
        lambda whole, computing: not (len(computing) and whole == whole and max(computing) > whole),
        "median", "rank_compute_seconds", dtype="bool",
    )(rows)  # fmt: skip


def _hidden(rows: Rows, end: int) -> Series:
    ends = _by_row(lambda interval: interval[end] if interval else None, "hidden_interval", dtype="float64")
    return ends(rows).where(_is_hidden(rows))


def _mesh_words(rows: Rows) -> Series:
    """The strategy, with the sizes of several axes, their names where orders differ, and the transport asked for."""
    pairs = list(zip(rows["strategy"], rows["mesh"], strict=True))
    orders: dict[Any, set[str]] = {}
    for strategy, mesh in pairs:
        orders.setdefault(strategy, set()).add(re.sub(r"=\d+", "", mesh or ""))

    def words(strategy: str | None, mesh: str | None, transport: Any) -> str | None:
        if strategy is None:
            return None
        sizes = re.findall(r"=(\d+)", mesh or "")
        shown = mesh if len(orders[strategy]) > 1 else "×".join(sizes) if len(sizes) > 1 else ""
        return moved_by(f"{strategy} {shown}".strip(), transport if isinstance(transport, str) else None)

    return _by_row(words, "strategy", "mesh", "transport")(rows)


def _transport(moved: Any) -> str | None:
    """The transports that were taken: one, or one for each axis."""
    if not isinstance(moved, str) or not moved:
        return None
    taken = {part.partition("=")[2] for part in re.split(r"[,|]", moved)}
    return taken.pop() if len(taken) == 1 else moved


def _elsewhere(rows: Rows) -> Series:
    """Whether the kernel of a row runs on other devices only, as the environment of its run says."""
    names = [(run.environment or {}).get("elsewhere") for run in rows.runs]
    others = [frozenset(map(str, some)) if isinstance(some, list) else frozenset() for some in names]
    return _by_row(
        lambda run, kernel: not others[run].isdisjoint(singles(kernel)), "run_number", "kernel", dtype="bool"
    )(rows)


_MS, _MIB, _GIB = 1e3, 2.0**-20, 2.0**-30
_name = partial(Column, left=True)
_code = partial(Column, left=True, code=True)
_digits = partial(Column, format=three_digits)
_share = partial(Column, format="{:.0%}".format)
_times = partial(Column, format=times)
_mask = _by_row(mask_name, "pattern", "factors")
_factor = partial(_by_row, dtype="float64")

_ALL = (
    # What was measured on what.
    _code("mask", derive=_mask),
    Column("masks", left=True, code=True, wrap=True, derive=_mask),
    _code("pattern", "mask"),
    _code("kernel"),
    _code("half", "kernel", derive=_by_row(_half, "kernel", "direction")),
    _name("direction"),
    Column("seqlen", "tokens", tokens),
    Column("heads", derive=_by_row("{}:{}".format, "heads_q", "heads_kv")),
    Column("head_dim", "dim"),
    Column("head_dims", "dim", derive=_by_row(_head_dims, "head_dim", "head_dim_v", "softcap", "sinks")),
    _name("dtype"),
    Column("seed"),
    _share("density", "dense", format=lambda value: f"{value:.1%}", drop=4, about="share of pairs that are visible"),
    _share("tile_efficiency", "tiles", drop=3, about="share of visible pairs in the 128 × 128 tiles of a mask"),
    Column("block", "blocks", "{:.0f}".format, about="tokens a block",
           derive=_factor(lambda factors: factors.get("block"), "factors")),
    _share("kept", about="share of blocks that the mask keeps",
           derive=_factor(lambda factors, density: factors.get("kept", density), "factors", "density")),
    # Where rows and tables stand.
    Column("pattern_place", derive=_pattern_place),
    Column("direction_place", derive=lambda rows: (rows["direction"] != "forward").astype(int)),
    Column("status_place", derive=lambda rows: (rows["status"] == "unsupported").astype(int)),
    # Which run, and which mask of it.
    Column("draw", derive=_by_row("{} {} {}".format, "run_number", "mask_digest", "seed")),
    _code("run", derive=_run_name),
    # What came of it.
    _name("status"),
    _name("message", "why", wrap=True),
    _name("advice", "what to do", wrap=True),
    Column("case", "cases"),
    _name("alike", about="a message without its numbers and the name of its mask",
          derive=_by_row(lambda said, mask: _NUMBER.sub("#", "#".join(said.rsplit(mask, 1))), "message", "pattern")),
    Column("elsewhere", derive=_elsewhere),
    _digits("tflops", "TFLOP/s", about="throughput of each device"),
    _digits("ms", derive=_scaled("median", _MS), about="median time"),
    _digits("low_ms", "low, ms", derive=partial(_interval_end, end=0), about="lower end of the 95 % interval"),
    _digits("high_ms", "high, ms", derive=partial(_interval_end, end=1), about="upper end of the 95 % interval"),
    _times("over_baseline", f"over {BASELINE}", derive=partial(_over, names=_DRAW, kernel=BASELINE),
           about=f"throughput over that of {BASELINE} on the same mask in the same run"),
    # In training: a forward and a backward.
    _code("single", derive=_in_training("single"), about="fastest single kernel in training"),
    _digits("single_tflops", "TFLOP/s", derive=_in_training("single_tflops")),
    _code("pair", derive=_in_training("pair"), about="fastest pair in training"),
    _digits("pair_tflops", "TFLOP/s", derive=_in_training("pair_tflops")),
    Column("pair_gain", "gain", brief_percent, derive=_in_training("pair_gain"),
           about="throughput of the pair over that of the single kernel, less 1"),
    _digits("plan_ms", "plan, ms", derive=_scaled("plan_seconds", _MS)),
    _digits("layout_ms", "layout, ms", derive=_scaled("layout_seconds", _MS)),
    _digits("mask_mib", "mask, MiB", derive=_scaled("metadata_bytes", _MIB)),
    _times("peak_gib", "GiB", drop=5, derive=_scaled("peak_bytes", _GIB), about="peak of memory"),
    # Two runs, A and B.
    _digits("a_ms", "A ms", drop=3, derive=_scaled("median", _MS)),
    Column("b_ms", "B ms", drop=3),
    Column("ratio", "A/B", ratio_text),
    Column("interval", "95 % interval"),
    _name("verdict", "shown"),
    # Several ranks.
    _name("who", "kernel", derive=_by_row(shared_by, "kernel", "strategy", "placement", "mesh", "transport")),
    _code("strategy"),
    _code("way", "strategy", derive=_mesh_words),
    _code("placement"),
    _code("placed", "placement"),
    _code("final_placement", "placement", derive=lambda rows: rows["placed"].fillna(rows["placement"])),
    _name("placing", "placement", derive=_by_row(
        lambda asked, placed: asked if placed in (None, asked) else f"{asked}: {placed}", "placement", "placed")),
    _name("way_placing", "strategies", derive=_by_row(
        lambda strategy, placement: strategy and f"{strategy} {placement}", "strategy", "placement")),
    _code("transport"),
    _code("moved_by", "transports"),
    _code("moved", "transport", derive=_by_row(_transport, "moved_by")),
    Column("world_size", "ranks", lambda value: counted(value, "rank")),
    _code("mesh"),
    _times("of_alone", "of alone", drop=1, derive=partial(_of_single_gpu, field="alone_seconds"),
           about="share of the throughput of the kernel on one device with as much work"),
    _times("of_abreast", "of abreast", drop=7, derive=partial(_of_single_gpu, field="abreast_seconds"),
           about="share of the throughput where all devices compute as much at once, each for itself"),
    _digits("abreast_ms", "abreast", derive=_scaled("abreast_seconds", _MS)),
    _digits("compute_ms", "compute", about="the slowest rank's kernel calls alone",
            derive=_factor(lambda each: max(each) * _MS if each else None, "rank_compute_seconds")),
    _digits("communication_ms", "communication", derive=_communicated("seconds", _MS), about="collectives alone"),
    _digits("busbw", "GB/s", drop=6, derive=_communicated("busbw"),
            about="bus bandwidth of the communication alone"),
    _share("hidden_share", "hidden", drop=2,
           derive=lambda rows: rows["hidden"].astype("float64").where(_is_hidden(rows)),
           about="share of communication behind computing; empty where computing alone took longer than the whole"),
    _share("hidden_from", "at least", drop=2, derive=partial(_hidden, end=0)),
    _share("hidden_to", "at most", drop=2, derive=partial(_hidden, end=1)),
    _times("area_imbalance", "area", drop=4, about="visible pairs of the busiest rank over the average rank's"),
    _times("time_imbalance", "time", drop=3, about="time of the slowest rank's kernel calls over the average rank's"),
    Column("error", format="{:.1e}".format, drop=8, about="largest error of a verified row"),
    Column("alone_error", "alone", "{:.1e}".format, drop=9, about="error of the kernel without a strategy"),
)  # fmt: skip

#: Every column that has more than its name, by name.
COLUMNS = {each.name: each for each in _ALL}
