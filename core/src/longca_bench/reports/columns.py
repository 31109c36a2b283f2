"""The columns of reports: a head, a format and a legend for each, and the function of each derived column.

To add a column, add an entry to `COLUMNS`. Fields of records are columns without an entry. An entry gives them a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from longca_bench.reports.derived import (
    alike,
    alone_rate,
    communicated,
    elsewhere,
    factor,
    halves_of,
    hidden_end,
    hidden_share,
    in_training,
    interval_end,
    kept_share,
    largest_error,
    mask_names,
    mesh_words,
    of_gpu,
    of_runs,
    over_base,
    over_full,
    pattern_place,
    placement_words,
    ratio,
    scaled,
    slowest,
    strategy_and_placement,
    texts,
    transport_words,
    whose,
)
from longca_bench.reports.words import (
    brief_error,
    brief_percent,
    counted,
    percent_of,
    ratio_text,
    three_digits,
    times,
    tokens,
)

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows

__all__ = ["BASELINE", "COLUMNS", "FULL_SPEED", "Column", "column"]

#: The kernel that `over_baseline` divides by, and the kernel whose speed on a full mask is the limit.
BASELINE, FULL_SPEED = "flex", "fa3"


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


_MS, _MIB, _GIB = 1e3, 2.0**-20, 2.0**-30
_name = partial(Column, left=True)
_code = partial(Column, left=True, code=True)
_digits = partial(Column, format=three_digits)
_share = partial(Column, format=percent_of)
_times = partial(Column, format=times)
_ratio = partial(Column, format="{:.3f}".format)

_ALL = (
    # What was measured on what.
    _code("mask", derive=mask_names),
    Column("masks", left=True, code=True, wrap=True, derive=mask_names),
    _code("pattern", "mask"),
    _code("kernel"),
    _code("half", "kernel", derive=halves_of),
    _name("direction"),
    Column("seqlen", "tokens", tokens),
    Column("heads", derive=lambda rows: texts(rows, "{}:{}", "heads_q", "heads_kv")),
    Column("head_dim", "dim"),
    _name("dtype"),
    Column("seed"),
    _share("density", "dense", format=lambda value: f"{value:.1%}", drop=4, about="share of pairs that are visible"),
    _share("tile_efficiency", "tiles", drop=3, about="share of visible pairs in the 128 × 128 tiles of a mask"),
    Column("block", "blocks", "{:.0f}".format, derive=partial(factor, name="block"), about="tokens a block"),
    _share("kept", derive=kept_share, about="share of blocks that the mask keeps"),
    # Where rows and tables stand.
    Column("pattern_place", derive=pattern_place),
    Column("direction_place", derive=lambda rows: (rows["direction"] != "forward").astype(int)),
    # Which run, and which mask of it.
    Column("draw", derive=lambda rows: texts(rows, "{} {} {}", "run_number", "mask_digest", "seed")),
    _code("run", derive=lambda rows: of_runs(rows, [run.folder.name for run in rows.runs])),
    _name("folder", derive=lambda rows: of_runs(rows, [str(run.folder) for run in rows.runs])),
    # What came of it.
    _name("status"),
    _name("message", "why", wrap=True),
    _name("advice", "what to do", wrap=True),
    Column("status_place", derive=lambda rows: (rows["status"] == "unsupported").astype(int)),
    Column("case", "cases"),
    _name("alike", derive=alike),
    Column("elsewhere", derive=elsewhere),
    _digits("tflops", "TFLOP/s", about="throughput of each device"),
    _digits("ms", derive=lambda rows: rows["median"] * _MS, about="median time"),
    _digits("low_ms", "low, ms", derive=partial(interval_end, end="low"), about="lower end of the 95 % interval"),
    _digits("high_ms", "high, ms", derive=partial(interval_end, end="high"), about="upper end of the 95 % interval"),
    _times("over_baseline", f"over {BASELINE}", derive=partial(over_base, base=BASELINE),
           about=f"throughput over that of {BASELINE} on the same mask in the same run"),
    _share("share_of_limit", "of the limit", derive=partial(over_full, base=FULL_SPEED),
           about=f"throughput over [{FULL_SPEED}'s on full attention × the mask's tile efficiency]"),
    # In training: a forward and a backward.
    _code("single", derive=partial(in_training, name="single"), about="fastest single kernel in training"),
    _digits("single_tflops", "TFLOP/s", derive=partial(in_training, name="single_tflops")),
    _code("pair", derive=partial(in_training, name="pair"), about="fastest pair in training"),
    _digits("pair_tflops", "TFLOP/s", derive=partial(in_training, name="pair_tflops")),
    Column("pair_gain", "gain", brief_percent, derive=partial(in_training, name="pair_gain"),
           about="throughput of the pair over that of the single kernel, less 1"),
    _digits("plan_ms", "plan, ms", derive=partial(scaled, field="plan_seconds", by=_MS)),
    _digits("layout_ms", "layout, ms", derive=partial(scaled, field="layout_seconds", by=_MS)),
    _digits("mask_mib", "mask, MiB", derive=partial(scaled, field="metadata_bytes", by=_MIB)),
    _times("peak_gib", "GiB", drop=5, derive=partial(scaled, field="peak_bytes", by=_GIB), about="peak of memory"),
    Column("sm_clock", "MHz", "{:.0f}".format, derive=partial(of_gpu, what="sm_clock"),
           about="clock of the multiprocessors after the last call"),
    Column("power", "W", "{:.0f}".format, derive=partial(of_gpu, what="power"), about="power after the last call"),
    # Two runs, A and B.
    _digits("a_ms", "A ms", drop=3, derive=lambda rows: rows["ms"]),
    _digits("b_ms", "B ms", drop=3),
    Column("ratio", "A/B", ratio_text),
    Column("interval", "95 % interval"),
    _name("verdict", "shown"),
    # Several ranks.
    _name("who", "kernel", derive=whose),
    _code("strategy"),
    _code("way", "strategy", derive=mesh_words),
    _code("placement"),
    _code("placed", "placement"),
    _name("placing", "placement", derive=placement_words),
    _name("way_placing", "strategies", derive=strategy_and_placement),
    _code("transport"),
    _code("moved_by", "transports"),
    _code("moved", "transport", derive=transport_words),
    Column("world_size", "ranks", lambda value: counted(value, "rank")),
    _code("mesh"),
    _times("of_alone", "of alone", drop=1, derive=partial(ratio, over="alone_seconds"),
           about="share of the throughput of the kernel on one device with as much work"),
    _times("of_abreast", "of abreast", drop=7, derive=partial(ratio, over="abreast_seconds"),
           about="share of the throughput where all devices compute as much at once, each for itself"),
    _digits("alone_tflops", "one GPU alone", derive=partial(alone_rate, field="alone_seconds")),
    _digits("abreast_tflops", "all GPUs abreast", derive=partial(alone_rate, field="abreast_seconds")),
    _digits("abreast_ms", "abreast", derive=partial(scaled, field="abreast_seconds", by=_MS)),
    _digits("compute_ms", "compute", derive=partial(slowest, field="rank_compute_seconds", by=_MS),
            about="the slowest rank's kernel calls alone"),
    _digits("communication_ms", "communication", derive=partial(communicated, what="seconds", by=_MS),
            about="collectives alone"),
    _digits("busbw", "GB/s", drop=6, derive=partial(communicated, what="busbw"),
            about="bus bandwidth of the communication alone"),
    _share("hidden_share", "hidden", drop=2, derive=hidden_share,
           about="share of communication behind computing; empty where computing alone took longer than the whole"),
    _share("hidden_from", "at least", drop=2, derive=partial(hidden_end, end=0)),
    _share("hidden_to", "at most", drop=2, derive=partial(hidden_end, end=1)),
    _times("area_imbalance", "area", drop=4, about="visible pairs of the busiest rank over the average rank's"),
    _times("time_imbalance", "time", drop=3, about="time of the slowest rank's kernel calls over the average rank's"),
    Column("error", format=brief_error, drop=8, derive=partial(largest_error, field="findings"),
           about="largest error of a verified row"),
    Column("alone_error", "alone", brief_error, drop=9, derive=partial(largest_error, field="alone_findings"),
           about="error of the kernel without a strategy"),
)  # fmt: skip

#: Every column that has more than its name, by name.
COLUMNS = {each.name: each for each in _ALL}


def column(name: str) -> Column:
    """A column by its name. A field without an entry has its name as its head; its numbers have three digits."""
    return COLUMNS.get(name) or Column(name, name.rpartition(".")[2], _plain)


def _plain(value: Any) -> str:
    return str(value) if not isinstance(value, float) else f"{value:.0f}" if value.is_integer() else three_digits(value)
