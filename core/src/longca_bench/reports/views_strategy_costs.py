"""Views of what strategies spend: the parts of their time, bytes and bandwidth, and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from longca_bench.reports.build import tables_of
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import three_digits, times

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows
    from longca_bench.reports.table import Table

__all__ = ["STRATEGY_TIME", "collectives", "strategy_memory"]

_DIRECTIONS = ("forward", "backward")
_GIB, _MIB = 2.0**30, 2.0**20
_MEASURED: dict[str, Any] = {"status": "ok", "condition": lambda rows: rows["strategy"].notna()}
_SETTING = ("kernel", "seqlen", "world_size", "heads", "head_dim")
_TITLE = "{kernel}, {seqlen} tokens on {world_size}, {heads} heads of {head_dim}"


def _signed(gib: float) -> str:
    return f"{gib:+.2f}"


STRATEGY_TIME = View(
    "the parts of the time of strategies: computing, communication, imbalance and planning",
    where=_MEASURED,
    sort=("kernel", "world_size", "seqlen", "pattern_place"),
    tables=(*_SETTING, "direction"),
    title=f"{_TITLE}: {{direction}}",
    rows=("mask", "way", "placed"),
    values=tuple(
        Value(name, missing="–")
        for name in (
            "ms", "abreast_ms", "compute_ms", "communication_ms", "hidden_share", "hidden_from", "hidden_to",
            "area_imbalance", "time_imbalance", "plan_ms", "layout_ms",
        )
    ),
)  # fmt: skip
_COLLECTIVES = View(
    "the collectives of one call without kernels: bytes as nccl-tests count them, and bandwidths in 10⁹ bytes a second",
    where=_MEASURED,
    sort=("kernel", "world_size", "seqlen"),
    tables=_SETTING,
    title=_TITLE,
    rows=("way", "direction", "kind"),
    values=(
        Value("calls", format=lambda value: f"{value:.0f}"),
        Value("bytes", head="MiB", format=lambda value: three_digits(value / _MIB)),
        Value("seconds", head="ms", format=lambda value: three_digits(value * 1e3)),
        Value("algbw", format=three_digits),
        Value("busbw", head="busbw", format=three_digits),
    ),
)
_MEMORY = View(
    "the highest peak of a rank beyond inputs and plan in GiB, the formula, and the difference",
    where=_MEASURED,
    sort=("kernel", "world_size", "seqlen"),
    tables=_SETTING,
    title=_TITLE,
    rows=("way",),
    values=tuple(
        Value(f"{direction}_{name}", "max", head or f"{direction}, GiB", format_, "–")
        for direction in _DIRECTIONS
        for name, head, format_ in (
            ("peak", "", times),
            ("formula", "formula", times),
            ("beyond", "beyond it", _signed),
        )
    ),
)


def collectives(rows: Rows) -> list[Table]:
    """The collectives of one call without kernels, by kind."""
    from pandas import DataFrame

    from longca_bench.reports.rows import Rows as Made

    chosen = rows.where(**_MEASURED)
    names = (*_SETTING, "way", "direction", "status", "strategy")
    lines = [
        {**about, "kind": kind.replace("_", "-"), **figures}
        for about, sent in zip(chosen.frame(names).to_dict("records"), chosen["communication"], strict=True)
        for kind, figures in (sent or {}).items()
        if kind != "all" or len(sent) > 2  # "all" repeats a single kind
    ]
    frame = DataFrame(lines)
    found = tables_of(_COLLECTIVES, Made({name: frame[name] for name in frame})) if lines else []
    return [
        replace(each, heads=tuple(replace(head, left=head.left or head.text == "kind") for head in each.heads))
        for each in found
    ]


def strategy_memory(rows: Rows) -> list[Table]:
    """The highest peak of a rank beyond inputs and plan in GiB, the formula of its strategy, and the difference."""
    from pandas import Series

    found = rows.where(**_MEASURED).where(lambda each: each["peak_bytes"].notna())
    names = [*_SETTING, "way", "direction"]
    highest = found.frame((*names, "peak_gib")).groupby(names)["peak_gib"].idxmax()
    chosen = found.where(lambda each: Series(each.index.isin(highest), each.index))
    stated = Series([_formula(record) for record in chosen.records()], chosen.index, dtype="float64")
    for direction in _DIRECTIONS:
        peak = chosen["peak_gib"].where(chosen["direction"] == direction)
        chosen = chosen.with_column(f"{direction}_peak", peak).with_column(f"{direction}_formula", stated + 0 * peak)
        chosen = chosen.with_column(f"{direction}_beyond", peak - stated)
    return tables_of(_MEMORY, chosen)


def _formula(record: Any) -> float | None:
    """The peak in GiB that the manifest of a record's strategy states, or None if it states none."""
    from longca import registry
    from longca.manifests import Device, Problem
    from longca.masks import build
    from longca_advice.from_records import recorded_transport

    known = registry(guarded=True)
    if record.strategy not in known.strategies:
        return None
    mask = build("full" if record.pattern == "full" else "causal", record.seqlen)
    problem = Problem(
        mask=mask,
        heads_q=record.heads_q,
        heads_kv=record.heads_kv,
        head_dim=record.head_dim,
        dtype=record.dtype,
        device=Device("cpu"),
        direction=record.direction,
    )
    sizes = {axis: int(size) for axis, size in (part.split("=") for part in record.mesh.split(","))}
    moved_by = record.moved_by if isinstance(record.moved_by, str) else None
    transport = recorded_transport({"moved_by": moved_by})
    stated = known.stated(record.strategy, "memory", problem, sizes, True, transport)
    return None if stated is None else float(getattr(stated, record.direction) / _GIB)
