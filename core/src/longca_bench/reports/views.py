"""The views by name. To add a view, add an entry to `VIEWS`: a `View`, or a function from rows to tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longca.errors import RequestError, UnknownNameError
from longca.plain_text import printable
from longca_bench.reports.columns import BASELINE
from longca_bench.reports.runs import flatten
from longca_bench.reports.table import Cell, Head, Mark, Table, table
from longca_bench.reports.training import COMBINED, PROBLEM
from longca_bench.reports.view import DRAW, Value, View, tables_of
from longca_bench.reports.winners import best_of
from longca_bench.reports.words import three_digits, throughput_unit, times, tokens

if TYPE_CHECKING:
    from pandas import Series

    from longca_bench.reports.rows import Rows

__all__ = ["SUMMARY", "VIEWS", "tables"]

_FEW = 3  # names that are listed one by one
_ONE_DEVICE: dict[str, Any] = {"strategy": None}
#: Earlier records of streams of masks have the direction `step`.
_RANKS: dict[str, Any] = {
    "status": "ok",
    "condition": lambda rows: rows["strategy"].notna() & (rows["direction"] != "step"),
}
_SHAPE = ("heads_q", "heads_kv", "head_dim", "head_dims", "dtype", "seqlen", "pattern_place", "block", "kept")
_SETTING = ("kernel", "seqlen", "world_size", "heads", "head_dims")
_ON_RANKS = "{kernel}, {seqlen} tokens, {world_size}, {heads} heads of {head_dims}"


def few(names: Sequence[str]) -> str:
    """The first names, and the number of further names."""
    known = [name for name in dict.fromkeys(names) if isinstance(name, str)]
    return ", ".join(known if len(known) <= _FEW + 1 else [*known[:_FEW], f"{len(known) - _FEW} more"])


def percent_range(ends: tuple[float, float]) -> str:
    """A share, or the least and the greatest of several."""
    low, high = map("{:.0%}".format, ends)
    return low if low == high else f"{low.rstrip('%')}–{high}"


def _names(found: Sequence[str | None]) -> str:
    return ", ".join(name for name in found if isinstance(name, str))


def _firsts(*names: str) -> tuple[Value, ...]:
    return tuple(Value(name, "first") for name in names)


#: Ms and throughput by mask and kernel, with the fastest of each mask.
RESULTS = View(
    where=_ONE_DEVICE,
    tables=("direction",),
    title="{direction}",
    rows=("mask", "seqlen"),
    varying=("heads", "head_dims", "dtype", "seed", "run"),
    apart=("mask_digest", "run_number"),
    beside=_firsts("density", "tile_efficiency"),
    across=("kernel",),
    values=(Value("ms"), Value("tflops")),
    counts=("ok", "suspect"),
    failures=True,
    best="least",
    winner=True,
    drawn="tflops",
)
#: Ms, throughput and costs by strategy and placement, a table for each mask and direction.
STRATEGIES = View(
    where={"condition": lambda rows: rows["strategy"].notna() & (rows["status"] != "unsupported")},
    tables=("mask", "direction", "seqlen", "world_size", "heads", "head_dims", "dtype", "mask_digest", "seed"),
    title="{mask} {direction}, {seqlen} tokens, {world_size}, {heads}×{head_dims} {dtype}",
    rows=("way", "placing", "kernel"),
    varying=("run",),
    apart=("run_number", "case"),
    values=_firsts(
        *("ms", "tflops", "of_alone", "hidden_share", "area_imbalance", "time_imbalance", "of_abreast", "busbw"),
        *("peak_gib", "error", "alone_error"),
    ),
    counts=("ok", "suspect"),
    failures=True,
    best="least",
    among="column",
    legend=True,
)
#: Each status that is not ok, with its cases and the reason.
NOT_MEASURED = View(
    where={"condition": lambda rows: rows["status"] != "ok"},
    sort=("status_place",),
    rows=("status", "kernel"),
    apart=("alike",),
    values=(
        Value("way_placing", "each", format=few),
        Value("masks", "each", format=few),
        Value("case", "size", "cases"),
        *_firsts("message", "advice"),
    ),
    counts=(),
)
#: TFLOP/s by mask and kernel, the median over draws.
THROUGHPUT = View(
    where=_ONE_DEVICE,
    sort=("direction_place", *_SHAPE),
    tables=("direction", "heads", "head_dims", "dtype", "seqlen"),
    title="{direction}, {seqlen} tokens, {heads} heads of {head_dims}",
    rows=("mask",),
    beside=(Value("tile_efficiency", "range", format=percent_range), Value("draw", "nunique", "draws")),
    across=("half",),
    values=(Value("tflops"),),
    best="most",
)
#: Throughput over that of a baseline on the same mask in the same run, by mask and kernel.
OVER_BASELINE = replace(
    THROUGHPUT,
    title=f"{THROUGHPUT.title}: over {BASELINE}",
    where={
        **_ONE_DEVICE,
        "condition": lambda rows: (
            (rows["kernel"] != BASELINE) & (rows["over_baseline"].notna() | (rows["status"] != "ok"))
        ),
    },
    beside=(),
    values=(Value("over_baseline"),),
    mean=True,
)
#: Planning in ms, the mask's bytes in MiB and the peak of memory in GiB, by kernel and length.
COSTS = View(
    where={**_ONE_DEVICE, "status": "ok"},
    sort=("seqlen",),
    rows=("kernel",),
    across=("seqlen",),
    values=(Value("plan_ms"), Value("mask_mib", "max"), Value("peak_gib", "max", format=three_digits)),
)


def _has_choices(rows: Rows) -> Series:
    """The first record of each draw that was measured in both directions."""
    return ~rows.frame(PROBLEM).duplicated() & (rows["single"].notna() | rows["pair"].notna())


#: The fastest single kernel and the fastest pair of each mask in training, and the gain, the medians over draws.
BEST_PAIR = View(
    where={**_ONE_DEVICE, "condition": _has_choices},
    sort=_SHAPE,
    tables=("heads", "head_dims", "dtype", "seqlen"),
    title="training, {seqlen} tokens, {heads} heads of {head_dims}",
    rows=("mask",),
    values=(
        Value("draw", "nunique", "draws"),
        Value("single", "each", format=_names),
        Value("single_tflops"),
        Value("pair", "each", format=_names),
        Value("pair_tflops"),
        Value("pair_gain"),
    ),
    counts=(),
    drawn="pair_gain",
)
#: TFLOP/s of each GPU by strategy and placement, and the share of one GPU alone.
STRATEGY_SHARES = View(
    where={"condition": _RANKS["condition"]},
    sort=("kernel", "world_size", "heads_q", "heads_kv", "seqlen", "strategy", "final_placement"),
    tables=(*_SETTING, "dtype"),
    title=_ON_RANKS,
    rows=("way", "final_placement"),
    across=("mask", "direction"),
    values=(Value("tflops"), Value("of_alone")),
    best="most",
    among="column",
)
#: Ms of each strategy by transport, with the share of one GPU alone and of communication that is hidden.
TRANSPORTS = View(
    where={**_RANKS, "condition": lambda rows: rows["moved_by"].notna() & (rows["direction"] != "step")},
    tables=(*_SETTING, "dtype", "direction"),
    title=_ON_RANKS.replace(",", " {direction},", 1),
    rows=("mask", "strategy", "mesh", "placed"),
    across=("moved",),
    values=(Value("ms"), Value("of_alone"), Value("hidden_share")),
    best="least",
    legend=True,
)
#: The parts of the time of strategies: computing, communication, imbalance and planning.
STRATEGY_TIME = View(
    where=_RANKS,
    sort=("kernel", "world_size", "seqlen", "pattern_place"),
    tables=(*_SETTING, "direction"),
    title=f"{_ON_RANKS}: {{direction}}",
    rows=("mask", "way", "placed"),
    values=tuple(
        Value(name)
        for name in (
            *("ms", "abreast_ms", "compute_ms", "communication_ms", "hidden_share", "hidden_from", "hidden_to"),
            *("area_imbalance", "time_imbalance", "plan_ms", "layout_ms"),
        )
    ),
)
#: The highest peak of a rank beyond inputs and plan in GiB.
STRATEGY_MEMORY = View(
    where=_RANKS,
    sort=("kernel", "world_size", "seqlen"),
    tables=_SETTING,
    title=_ON_RANKS,
    rows=("way",),
    across=("direction",),
    values=(Value("peak_gib", "max"),),
)


def results(rows: Rows) -> list[Table]:
    """ms and throughput by mask and kernel, with the fastest kernel of each mask. Many pairs share columns."""
    notes, view = [], _with_unit(RESULTS, rows)
    if (rows["status"] == "suspect").any():
        notes.append("? marks a time that is not believed. Such a time is never the fastest.")
    if sum("+" in kernel for kernel in rows["kernel"].unique()) > _FEW:
        notes.append("+ stands before the backward of a kernel with the forwards of other kernels.")
        view = replace(view, across=("half",))
    return [replace(each, notes=tuple(notes)) for each in tables_of(view, rows)]


def strategies(rows: Rows) -> list[Table]:
    """ms, throughput and costs by strategy and placement, a table for each mask and direction."""
    return tables_of(_with_unit(STRATEGIES, rows), rows)


def _with_unit(view: View, rows: Rows) -> View:
    """The view with throughput in GFLOP/s, if nothing reaches one TFLOP/s."""
    unit, by = throughput_unit(rows["tflops"].max())
    head = "per rank" if view is STRATEGIES else ""
    values = tuple(
        replace(each, head=head, format=lambda value: three_digits(value * by)) if each.column == "tflops" else each
        for each in view.values
    )
    return replace(view, values=values, title=f"{view.title}: ms and {unit}")


def best_pair(rows: Rows) -> list[Table]:
    """The fastest single kernel and the fastest pair of each mask in training, measured or combined."""
    found = tables_of(BEST_PAIR, rows)
    if found and any(COMBINED in name for name in rows["pair"] if isinstance(name, str)):
        note = (
            f"{COMBINED} This pair was not measured as one. Its time is combined: the medians of its first kernel's "
            "forward and of its second kernel's backward."
        )
        found[-1] = replace(found[-1], notes=(*found[-1].notes, note))
    return found


def measured_pairs(rows: Rows) -> list[Table]:
    """The same as `best-pair`, if some pair was measured. Else nothing."""
    measured = rows.where(status="ok", strategy=None)["kernel"]
    return best_pair(rows) if any("+" in kernel for kernel in measured.unique()) else []


def fastest(rows: Rows) -> list[Table]:
    """The fastest kernel of each mask with its throughput, a column for each direction, length and shape."""
    made = tables_of(THROUGHPUT, rows)
    parts = [each.title.split(", ") for each in made]
    common = [part for part in parts[0] if all(part in each for each in parts)] if len(made) > 1 else []
    lines: dict[str, list[str]] = {row[0].text: [""] * len(made) for each in made for row in each.rows}
    for place, each in enumerate(made):
        for row in each.rows:
            names = zip(each.heads, row, strict=True)
            best = (f"{head.text} {cell.text}" for head, cell in names if cell.mark is Mark.BEST)
            lines[row[0].text][place] = next(best, "–")
    heads = [Head(", ".join(part for part in each if part not in common), left=True) for each in parts]
    title = ", ".join(["TFLOP/s of the fastest kernel", *common])
    body = [[mask, *cells] for mask, cells in lines.items()]
    return [table([Head("mask", left=True, code=True), *heads], body, title=title)] if made else []


def fastest_strategies(rows: Rows) -> list[Table]:
    """The fastest strategy for each mask in training, its share of one GPU alone, and the next strategy.

    It is the fastest of those that the same runs measured on the same draws. A strategy that was not measured in every
    direction of the records is left out, and so is a strategy of heads and rings without a ring, which is Ulysses under
    another name.
    """
    problem = ["kernel", "world_size", "heads", "seqlen", "pattern_place", "mask", "head_dims", "dtype"]
    way, case = ["strategy", "way", "final_placement"], [*DRAW, "direction"]
    frame = rows.where(**_RANKS).frame((*problem, *way, *case, "mesh", "median", "alone_seconds", "busy"))
    frame = frame[~frame["mesh"].str.fullmatch(r"(\w+=1,)+\w+=\d+")].assign(_busy=frame["busy"] != "")
    frame["directions"] = 1
    about = {"median": "median", "alone_seconds": "median", "_busy": "max", "directions": "max"}
    each = frame.groupby([*problem, *way, *case], as_index=False).agg(about)
    both = each.groupby([*problem, *way, *DRAW], as_index=False).agg(dict.fromkeys(about, "sum"))
    both = both[both["directions"] == both["directions"].max()].astype({"_busy": bool})
    both["_draw"], both["_way"] = both.groupby(list(DRAW)).ngroup(), both.groupby(way).ngroup()
    lines = []
    for _, first in best_of(both, problem, "_way", "median").sort_values(problem).iterrows():
        of_mask = both[(both[problem] == first[problem]).all(axis=1)]
        own = of_mask[of_mask["_way"] == first["_way"]]
        share = float((own["alone_seconds"] / own["median"]).median())
        told = own.iloc[0]
        about_it = (told["mask"], told["kernel"], str(told["world_size"]), tokens(told["seqlen"]))
        line = [*about_it, told["way"], told["final_placement"], Cell(times(share), share) if share > 0 else "–"]
        others = of_mask[of_mask["strategy"] != told["strategy"]].merge(own[["_draw", "median"]], on="_draw")
        others["takes"] = others["median_x"] / others["median_y"]
        takes = others.groupby(way, as_index=False)["takes"].median().sort_values("takes", kind="stable")
        for _, then in takes.head(1).iterrows():
            line += [then["way"], then["final_placement"], Cell(f"{then['takes']:.2f}×", float(then["takes"]))]
        lines.append([*line, *[""] * (10 - len(line))])
    names = ("mask", "kernel", "ranks", "tokens", "fastest", "placement", "of alone", "next", "placement", "takes")
    numbers = ("ranks", "tokens", "of alone", "takes")
    heads = [Head(name, left=name not in numbers, code=name not in numbers) for name in names]
    return [table(heads, lines)] if lines else []


def environment(rows: Rows) -> list[Table]:
    """The environments of runs: each fact, its value, and the runs with this value."""
    facts: dict[str, dict[str, list[str]]] = {}
    for run in rows.runs:
        for name, value in flatten(run.environment or {}):
            facts.setdefault(name, {}).setdefault(value, []).append(printable(run.folder.name))
    every = len(rows.runs)
    body = [
        [name, value, "all" if len(runs) == every else ", ".join(runs)]
        for name, found in facts.items()
        for value, runs in found.items()
    ]
    heads = [Head("fact", left=True), Head("found", left=True, wrap=True), Head("runs", left=True, wrap=True)]
    made = table(heads, body)
    return [made if every > 1 else made.only([0, 1])] if body else []


VIEWS: dict[str, View | Callable[[Rows], list[Table]]] = {
    "results": results,
    "strategies": strategies,
    "not-measured": NOT_MEASURED,
    "environment": environment,
    "fastest": fastest,
    "throughput": THROUGHPUT,
    "over-baseline": OVER_BASELINE,
    "best-pair": best_pair,
    "pairs": measured_pairs,
    "costs": COSTS,
    "fastest-strategies": fastest_strategies,
    "strategy-shares": STRATEGY_SHARES,
    "transports": TRANSPORTS,
    "strategy-time": STRATEGY_TIME,
    "strategy-memory": STRATEGY_MEMORY,
}
_BUSY = "~ marks a time of a busy machine. Such a time names no winner."
#: The views of functions of rows, for pictures.
_DRAWN = {
    "results": RESULTS,
    "strategies": STRATEGIES,
    "best-pair": BEST_PAIR,
    "pairs": BEST_PAIR,
    "fastest": THROUGHPUT,
}
#: The views of a report that names none.
SUMMARY = ("results", "pairs", "strategies", "not-measured")


def drawn_view(name: str | None, rows: Rows) -> View:
    """The view whose figures a picture has. Without a name it is throughput, of several ranks if nothing else is there.

    Raises:
        RequestError: The view has no figures to draw.
    """
    if name is None:
        return THROUGHPUT if rows["strategy"].isna().any() else STRATEGY_SHARES
    known = {**VIEWS, **_DRAWN}
    views = {name: view for name, view in known.items() if isinstance(view, View) and view != NOT_MEASURED}
    if name not in views:
        raise RequestError(f"the view {name} cannot be drawn; draw one of {', '.join(views)}")
    return views[name]


def tables(name: str, rows: Rows) -> list[Table]:
    """The tables of a view of rows.

    Raises:
        UnknownNameError: There is no such view. The message lists the views.
    """
    if name not in VIEWS:
        raise UnknownNameError("view", name, VIEWS)
    maker = VIEWS[name]
    found = tables_of(maker, rows) if isinstance(maker, View) else maker(rows)
    return [replace(each, notes=(*each.notes, *[_BUSY] * each.is_busy)) for each in found]
