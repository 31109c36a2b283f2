"""Tables of how fast strategies are: throughput beside the kernel alone, and beside other people's strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from measured_page import bold, table
from parallel_ways import DIRECTIONS, Setting, Way, limit_tflops, of_alone

from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import three_digits, tokens, word

#: Masks that every kernel knows, whose throughput is shown.
PLAIN = ("full", "causal")
#: What marks the placement that `auto` took.
CHOSEN = "•"
#: What no strategy is faster than, and the record's field with its seconds.
LIMITS = {"*one GPU alone*": "alone_seconds", "*all GPUs abreast*": "abreast_seconds"}
#: The same where others are measured beside ours.
_KINDS = {"alone": "*one GPU alone*", "abreast": "*all GPUs abreast*"}

Row = dict[str, Any]


def throughput(found: Sequence[Setting]) -> str:
    """TFLOP/s of each rank on full and causal masks, and their share of the kernel alone, a table a setting."""
    shown = [(setting, [mask for mask in setting.masks if mask in PLAIN]) for setting in found]
    tables = [f"### {setting.title}\n\n{_throughput(setting, masks)}" for setting, masks in shown if masks]
    return "\n\n".join(tables) or "*Nothing of full and causal masks was measured.*"


def _throughput(setting: Setting, masks: Sequence[str]) -> str:
    columns = [(mask, direction) for mask in masks for direction in DIRECTIONS]
    heads = ["strategy", "placement", *(f"`{mask}` {direction}" for mask, direction in columns)]
    body = []
    for words, seconds in LIMITS.items():
        limits = [setting.median(partial(limit_tflops, seconds), *column) for column in columns]
        if any(value is not None for value in limits):
            body.append([words, "", *("" if value is None else three_digits(value) for value in limits)])
    best = [_most(setting, _tflops, *column) for column in columns]
    for way in setting.ways:
        cells = [
            bold(_speed(setting, *column, way), most is not None and setting.median(_tflops, *column, way) == most)
            for column, most in zip(columns, best, strict=True)
        ]
        if any(cell not in ("", word("unsupported")) for cell in cells):
            body.append([way.words, f"`{way.placement}`", *cells])
    return table(heads, body, left=(0, 1))


def _tflops(record: Record) -> float | None:
    return record.tflops if record.status == "ok" else None


def _speed(setting: Setting, mask: str, direction: str, way: Way) -> str:
    """Throughput, its share of the kernel alone, and whether `auto` took this; or what happened instead."""
    value = setting.median(_tflops, mask, direction, way)
    if value is None:
        return setting.word(mask, direction, way)
    share = setting.median(of_alone, mask, direction, way)
    shown = three_digits(value) + ("" if share is None else f" ({share:.2f})")
    return _marked(setting, mask, direction, way, shown)


def _marked(setting: Setting, mask: str, direction: str, way: Way, shown: str) -> str:
    return f"{shown} {CHOSEN}" if setting.chosen(mask, direction, way) else shown


def _most(setting: Setting, value: Callable[[Record], float | None], mask: str, direction: str) -> float | None:
    found = [setting.median(value, mask, direction, way) for way in setting.ways]
    return max((each for each in found if each is not None), default=None)


def ratios(found: Sequence[Setting]) -> str:
    """The share of the kernel alone on all other masks, a table a setting and direction."""
    shown = [(setting, [mask for mask in setting.masks if mask not in PLAIN]) for setting in found]
    parts = [
        f"### {setting.title}: {direction}\n\n{_ratios(setting, masks, direction)}"
        for setting, masks in shown
        for direction in DIRECTIONS
        if any(setting.of(mask, direction) for mask in masks)
    ]
    return "\n\n".join(parts) or "*Nothing but full and causal masks was measured.*"


def _ratios(setting: Setting, masks: Sequence[str], direction: str) -> str:
    body = []
    best = {mask: _most(setting, of_alone, mask, direction) for mask in masks}
    for way in setting.ways:
        cells = []
        for mask in masks:
            share = setting.median(of_alone, mask, direction, way)
            shown = _unknown(setting, mask, direction, way) if share is None else f"{share:.2f}"
            cells.append(bold(_marked(setting, mask, direction, way, shown), share is not None and share == best[mask]))
        if any(cell not in ("", word("unsupported")) for cell in cells):
            body.append([way.words, f"`{way.placement}`", *cells])
    return table(["strategy", "placement", *(f"`{mask}`" for mask in masks)], body, left=(0, 1))


def _unknown(setting: Setting, mask: str, direction: str, way: Way) -> str:
    """What stands where there is no ratio: the time, where the kernel takes the mask on ranks alone; else a word."""
    seconds = setting.median(lambda record: record.median, mask, direction, way)
    return setting.word(mask, direction, way) if seconds is None else f"{three_digits(seconds * 1e3)} ms"


def peers(rows: Iterable[Row]) -> str:
    """Each strategy and beneath it the others that do the same, in one run, a table a length and mask."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["seqlen"], row["mask"]), []).append(row)
    return "\n\n".join(
        f"### `{mask}`, {tokens(seqlen)} tokens\n\n{_peers(_by_name(together))}"
        for (seqlen, mask), together in found.items()
    )


def _by_name(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Rows of one length and mask by name and direction."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row["name"], {})[row["direction"]] = row
    return found


def _peers(by_name: dict[str, dict[str, Row]]) -> str:
    heads = ["", "placement"]
    for direction in DIRECTIONS:
        heads += [f"{direction}, TFLOP/s", "of alone", "ours over it"]
    kinds = {name: next(iter(rows.values())) for name, rows in by_name.items()}
    order = [name for name, row in kinds.items() if row["kind"] in _KINDS]
    for name in (name for name, row in kinds.items() if row["kind"] == "ours"):
        order += [name, *(peer for peer, row in kinds.items() if row.get("peer_of") == name)]
    order += [name for name in kinds if name not in order]
    best = {direction: _fastest(by_name, direction) for direction in DIRECTIONS}
    body = []
    for name in order:
        about = kinds[name]
        words = {**_KINDS, "ours": f"`{name}`"}.get(about["kind"], f"– {name}")
        line = [words, about.get("placement") or ""]
        for direction in DIRECTIONS:
            ours = by_name.get(about.get("peer_of") or "", {}).get(direction)
            line += _peer_cells(by_name[name].get(direction), ours, is_best=name == best[direction])
        body.append(line)
    return table(heads, body, left=(0, 1))


def _fastest(by_name: dict[str, dict[str, Row]], direction: str) -> str | None:
    rows = {name: each[direction] for name, each in by_name.items() if direction in each}
    speeds = {name: row["tflops"] for name, row in rows.items() if row["kind"] not in _KINDS and row["status"] == "ok"}
    return max(speeds, key=lambda name: speeds[name], default=None)


def _peer_cells(row: Row | None, ours: Row | None, *, is_best: bool) -> list[str]:
    """Throughput, its share of the kernel alone, and what ours has over it."""
    if row is None or row["status"] != "ok":
        return ["" if row is None else row["status"], "", ""]
    share = "" if row.get("of_alone") is None else f"{row['of_alone']:.2f}"
    over = "" if ours is None or ours["status"] != "ok" else f"{row['milliseconds'] / ours['milliseconds']:.2f}"
    return [bold(three_digits(row["tflops"]), is_best), share, over]
