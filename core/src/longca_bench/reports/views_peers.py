"""Views of the benchmarks of strategies: other people's strategies beside ours, and transfers beside a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from longca_bench.reports.build import tables_of
from longca_bench.reports.table import Cell, Head, Mark, Table
from longca_bench.reports.view import Value, View
from longca_bench.reports.words import three_digits, times, tokens

if TYPE_CHECKING:
    from longca_bench.reports.rows import Rows

__all__ = ["overlap", "peers"]

_DIRECTIONS = ("forward", "backward")
_LIMITS = {"alone": "one GPU alone", "abreast": "all GPUs abreast"}
_OVERLAP = View(
    "the share of one GPU alone by the number of chunks of heads, and by whether transfers run beside a step",
    where={"condition": lambda rows: rows["strategy"].notna() & (rows["strategy"] != "")},
    tables=("strategy",),
    title="{strategy}",
    rows=("varied",),
    across=("mask", "seqlen", "direction"),
    values=(Value("of_alone", "first", format=times),),
    sort=("chunks",),
    best="most",
    among="column",
)


def overlap(rows: Rows) -> list[Table]:
    """The share of one GPU alone by chunks of heads, and by whether transfers run beside a step.

    Args:
        rows: Rows of `longca_cp/benchmarks/overlap.py`.
    """
    pairs = zip(rows.every["chunks"], rows.every["beside"], strict=True)
    varied = rows.with_column("varied", _series(rows, [_varied(*pair) for pair in pairs]))
    return [replace(made, heads=(Head("", left=True), *made.heads[1:])) for made in tables_of(_OVERLAP, varied)]


def _varied(chunks: Any, beside: Any) -> str:
    if chunks is None or chunks != chunks:
        return "transfers beside a step" if beside is True else "transfers before it"
    return "1 chunk" if chunks == 1 else f"{chunks:.0f} chunks"


def _series(rows: Rows, values: list[Any]) -> Any:
    from pandas import Series

    return Series(values, rows.every.index)


def peers(rows: Rows) -> list[Table]:
    """Each strategy, and below it the strategies of others that do the same, in one run.

    A strategy that was measured by several transports is compared by the one that is faster, both directions together.

    Args:
        rows: Rows of `longca_cp/benchmarks/peers.py`.
    """
    names = ("seqlen", "mask", "direction", "name", "kind", "peer_of", "status", "tflops", "of_alone", "milliseconds")
    frame = rows.frame([*names, *(["placement"] if "placement" in rows else [])])
    made = []
    for (seqlen, mask), part in frame.groupby(["seqlen", "mask"], sort=False):
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for row in part.to_dict("records"):
            found.setdefault(row["name"], {})[row["direction"]] = row
        made.append(_table(f"{mask}, {tokens(int(seqlen))} tokens", found))
    return [*made[:-1], made[-1].with_notes(*_notes(rows))]


def _notes(rows: Rows) -> list[str]:
    """The versions that were measured, and the reasons against peers that were not."""
    about = rows.about
    versions = [f"{name} {version}" for name, version in sorted(about.get("versions", {}).items()) if version]
    versions += [f"NCCL {about['nccl']}"] if about.get("nccl") else []
    said = [f"Measured with {', '.join(versions)}."] if versions else []
    said += [f"The kernel of the peers: {about['flash_attn']}."] if about.get("flash_attn") else []
    failed = rows.where(lambda found: found["status"] != "ok").frame(("name", "message")).drop_duplicates()
    return [*said, *(f"{name}: {message}" for name, message in failed.itertuples(index=False, name=None))]


def _table(title: str, found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    heads = [Head("strategy", left=True), Head("placement", left=True)]
    for direction in _DIRECTIONS:
        heads += [Head(f"{direction}, TFLOP/s"), Head("of alone"), Head("ours over it")]
    about = {name: next(iter(rows.values())) for name, rows in found.items()}
    order = [name for name, row in about.items() if row["kind"] in _LIMITS]
    ours: dict[str, list[str]] = {}
    for name, row in about.items():
        if row["kind"] == "ours":
            ours.setdefault(name.partition(" by ")[0], []).append(name)
    for strategy, ways in ours.items():
        order += [*ways, *(peer for peer, row in about.items() if row["peer_of"] == strategy)]
    compared = {strategy: min(ways, key=lambda name: _together(found[name])) for strategy, ways in ours.items()}
    fastest = {direction: _fastest(found, direction) for direction in _DIRECTIONS}
    lines = []
    for name in order:
        row = about[name]
        is_limit = row["kind"] in _LIMITS
        words = _LIMITS[row["kind"]] if is_limit else name if row["kind"] == "ours" else f"– {name}"
        placement = row.get("placement")
        line = [Cell(words, mark=Mark.ASIDE if is_limit else Mark.NONE)]
        line.append(Cell(placement if isinstance(placement, str) else ""))
        for direction in _DIRECTIONS:
            mine = found.get(compared.get(row["peer_of"] or "", ""), {}).get(direction)
            line += _cells(found[name].get(direction), mine, is_best=name == fastest[direction])
        lines.append(tuple(line))
    return Table(tuple(heads), tuple(lines), title)


def _together(rows: Mapping[str, Mapping[str, Any]]) -> float:
    """Milliseconds of all directions, or infinity if one of them is missing."""
    times = [row["milliseconds"] for row in rows.values() if row["status"] == "ok"]
    return sum(times) if len(times) == len(rows) else inf


def _fastest(found: Mapping[str, Mapping[str, Mapping[str, Any]]], direction: str) -> str | None:
    rows = {name: each[direction] for name, each in found.items() if direction in each}
    speeds = {name: row["tflops"] for name, row in rows.items() if row["kind"] not in _LIMITS and row["status"] == "ok"}
    return max(speeds, key=speeds.__getitem__, default=None)


def _cells(row: Mapping[str, Any] | None, ours: Mapping[str, Any] | None, *, is_best: bool) -> list[Cell]:
    """Throughput, its share of one GPU alone, and the peer's time over ours."""
    if row is None or row["status"] != "ok":
        return [Cell("" if row is None else row["status"], mark=Mark.QUIET), Cell(""), Cell("")]
    share = row["of_alone"]
    over = row["milliseconds"] / ours["milliseconds"] if ours is not None and ours["status"] == "ok" else None
    return [
        Cell(three_digits(row["tflops"]), row["tflops"], Mark.BEST if is_best else Mark.NONE),
        Cell("" if share is None or share != share else times(share), share),
        Cell("" if over is None else times(over), over),
    ]
