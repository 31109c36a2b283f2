"""Tables of what strategies spend: time on what, memory, and error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from measured_page import table
from parallel_ways import AUTO, DIRECTIONS, Setting, Way, largest, way_of

from longca import masks
from longca.manifests import Device, Problem
from longca_bench.measuring.records import Record
from longca_bench.reports.run_cells import three_digits, tokens
from longca_cp.memory import peak_bytes

_TENSORS = {"forward": ("out",), "backward": ("dq", "dk", "dv")}
_GIB, _MIB = 2**30, 2**20


def _ok(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.status == "ok"]


def _in_auto(records: Iterable[Record]) -> list[Record]:
    """Those placed by `auto`; all, where none was."""
    known = _ok(records)
    return [record for record in known if record.placement == AUTO] or known


def where_time_goes(found: Sequence[Setting]) -> str:
    """What the time of each strategy is made of, of each kernel in its largest setting."""
    parts = [
        f"### {setting.title}: {direction}\n\n{_time(setting, direction)}"
        for setting in largest(found)
        for direction in DIRECTIONS
        if any(_ok(setting.of(mask, direction)) for mask in setting.masks)
    ]
    return "\n\n".join(parts) or "*Nothing was measured.*"


_TIMES: dict[str, Callable[[Record], str]] = {
    "ms": lambda r: three_digits((r.median or 0.0) * 1e3),
    "abreast": lambda r: "–" if r.abreast_seconds is None else three_digits(r.abreast_seconds * 1e3),
    "compute": lambda r: three_digits(max(r.rank_compute_seconds, default=0.0) * 1e3),
    "communication": lambda r: three_digits(r.communication["all"]["seconds"] * 1e3) if r.communication else "–",
    "hidden": lambda r: "–" if r.hidden is None else f"{r.hidden:.0%}",
    "area": lambda r: "–" if r.area_imbalance is None else f"{r.area_imbalance:.2f}",
    "time": lambda r: "–" if r.time_imbalance is None else f"{r.time_imbalance:.2f}",
    "plan, ms": lambda r: three_digits((r.plan_seconds or 0.0) * 1e3),
    "layout, ms": lambda r: three_digits((r.layout_seconds or 0.0) * 1e3),
}


def _time(setting: Setting, direction: str) -> str:
    body = []
    for mask in setting.masks:
        for strategy in dict.fromkeys(way.strategy for way in setting.ways):
            records = _in_auto(r for r in setting.of(mask, direction) if r.strategy == strategy)
            if records:
                record = _middle(records)
                way = way_of(record)
                cells = (say(record) for say in _TIMES.values())
                body.append([f"`{mask}`", way.words, f"`{way.placement}`", *cells])
    return table(["mask", "strategy", "placement", *_TIMES], body, left=(0, 1, 2))


def _middle(records: Sequence[Record]) -> Record:
    """The record of the median time, so that what stands in a row is of one measurement."""
    return sorted(records, key=lambda record: record.median or 0.0)[len(records) // 2]


def bandwidth(found: Sequence[Setting]) -> str:
    """Communication alone by kind, of each kernel in its largest setting, on the first of its masks."""
    parts = [
        f"### {setting.title}: `{setting.masks[0]}`\n\n{_bandwidth(setting, setting.masks[0])}"
        for setting in largest(found)
        if any(_ok(setting.of(setting.masks[0], direction)) for direction in DIRECTIONS)
    ]
    return "\n\n".join(parts) or "*Nothing was measured.*"


def _bandwidth(setting: Setting, mask: str) -> str:
    body = []
    for strategy in dict.fromkeys(way.strategy for way in setting.ways):
        for direction in DIRECTIONS:
            records = _in_auto(r for r in setting.of(mask, direction) if r.strategy == strategy)
            for kind, all_of in _by_kind(records).items():
                middle = {name: median(each[name] for each in all_of) for name in all_of[0]}
                body.append(
                    [
                        way_of(records[0]).words, direction, kind, f"{middle['calls']:.0f}",
                        three_digits(middle["bytes"] / _MIB), three_digits(middle["seconds"] * 1e3),
                        three_digits(middle["algbw"]), three_digits(middle["busbw"]),
                    ]
                )  # fmt: skip
    return table(["strategy", "", "kind", "calls", "MiB", "ms", "algbw", "busbw"], body, left=(0, 1, 2))


def _by_kind(records: Iterable[Record]) -> dict[str, list[dict[str, int | float]]]:
    """Communication alone by kind; all together where there are several."""
    found: dict[str, list[dict[str, int | float]]] = {}
    for record in records:
        for kind, each in record.communication.items():
            if kind != "all" or len(record.communication) > 2:
                found.setdefault(kind.replace("_", "-"), []).append(each)
    return found


def formula(record: Record) -> int:
    """What a record's strategy takes on a rank at its peak, as `longca_cp.memory` has it."""
    problem = Problem(
        mask=masks.build("full" if record.pattern == "full" else "causal", record.seqlen),
        heads_q=record.heads_q,
        heads_kv=record.heads_kv,
        head_dim=record.head_dim,
        dtype=record.dtype,  # type: ignore[arg-type]  # Problem checks it
        device=Device("cpu"),
        direction=record.direction,  # type: ignore[arg-type]
    )
    way = way_of(record)
    return peak_bytes(way.strategy, problem, way.axis_sizes, nccl=True)  # peaks are measured on GPUs alone


def memory(found: Sequence[Setting]) -> str:
    """The highest peak of any rank beside the formula, a table a setting."""
    parts = [f"### {setting.title}\n\n{_memory(setting)}" for setting in found if _peaks(setting)]
    return "\n\n".join(parts) or "*Not known: the peak of memory is measured on GPUs alone.*"


def _peaks(setting: Setting) -> dict[tuple[str, str], dict[str, Record]]:
    """Of each strategy and mesh, and of each direction, the record with the highest peak."""
    found: dict[tuple[str, str], dict[str, Record]] = {}
    for record in _ok(setting.records):
        if record.peak_bytes is not None:
            way = way_of(record)
            of_way = found.setdefault((way.strategy, way.mesh), {})
            before = of_way.get(record.direction)
            if before is None or record.peak_bytes > (before.peak_bytes or 0):
                of_way[record.direction] = record
    return found


def _memory(setting: Setting) -> str:
    heads = ["strategy"]
    for direction in DIRECTIONS:
        heads += [f"{direction}, GiB", "formula", "beyond it"]
    body = []
    for (strategy, mesh), by_direction in _peaks(setting).items():
        cells = []
        for direction in DIRECTIONS:
            cells += _peak_cells(by_direction.get(direction))
        body.append([Way(strategy, mesh, "").words, *cells])
    return table(heads, body)


def _peak_cells(record: Record | None) -> list[str]:
    if record is None or record.peak_bytes is None:
        return ["–", "", ""]
    most = formula(record)
    return [f"{record.peak_bytes / _GIB:.2f}", f"{most / _GIB:.2f}", f"{(record.peak_bytes - most) / _GIB:+.2f}"]


def memory_by_ranks(found: Sequence[Setting]) -> str:
    """The highest peak by the number of ranks, where each has as many tokens: does it grow?"""
    by_share: dict[tuple[str, int, str], dict[int, Setting]] = {}
    for setting in found:
        if _peaks(setting):
            by_share.setdefault((setting.kernel, setting.seqlen // setting.ranks, setting.shape), {})[setting.ranks] = (
                setting
            )
    parts = [
        f"`{kernel}`, {tokens(each)} tokens for each rank, {shape}:\n\n{_by_ranks(settings)}"
        for (kernel, each, shape), settings in by_share.items()
        if len(settings) > 1
    ]
    return "\n\n".join(parts) or "*Not measured: no two numbers of ranks have as many tokens each.*"


def _by_ranks(by_ranks: dict[int, Setting]) -> str:
    peaks = {ranks: _highest(setting) for ranks, setting in sorted(by_ranks.items())}
    strategies = dict.fromkeys(strategy for each in peaks.values() for strategy, _ in each)
    heads = ["strategy", *(f"{direction}, {ranks} ranks" for direction in DIRECTIONS for ranks in peaks)]
    body = []
    for strategy in strategies:
        found = [peaks[ranks].get((strategy, direction)) for direction in DIRECTIONS for ranks in peaks]
        body.append([f"`{strategy}`", *("–" if peak is None else f"{peak / _GIB:.2f}" for peak in found)])
    return table(heads, body)


def _highest(setting: Setting) -> dict[tuple[str, str], int]:
    """The highest peak of a strategy and direction, over its meshes."""
    found: dict[tuple[str, str], int] = {}
    for (strategy, _), by_direction in _peaks(setting).items():
        for direction, record in by_direction.items():
            key = strategy, direction
            found[key] = max(found.get(key, 0), record.peak_bytes or 0)
    return found


def errors(found: Sequence[Setting]) -> str:
    """The worst error of each tensor by strategy, and that of the kernel alone on the same inputs, a table a kernel."""
    kernels: dict[str, list[Record]] = {}
    for setting in found:
        kernels.setdefault(setting.kernel, []).extend(_ok(setting.records))
    parts = [f"`{kernel}`:\n\n{_errors(records)}" for kernel, records in kernels.items() if records]
    return "\n\n".join(parts) or "*Nothing was measured.*"


def _errors(records: Sequence[Record]) -> str:
    tensors = [tensor for direction in DIRECTIONS for tensor in _TENSORS[direction]]
    body = []
    for strategy in dict.fromkeys(record.strategy or "" for record in records):
        mine = [record for record in records if record.strategy == strategy]
        cells = []
        for tensor in tensors:
            worst = [_worst(mine, tensor, field) for field in ("findings", "alone_findings")]
            cells.append(" / ".join("–" if error is None else f"{error:.1e}" for error in worst))
        body.append([f"`{strategy}`", str(len(mine)), *cells])
    return table(["strategy", "cases", *(f"`{tensor}`" for tensor in tensors)], body)


def _worst(records: Iterable[Record], tensor: str, field: str) -> float | None:
    found = [
        finding["error"]
        for record in records
        if tensor in _TENSORS[record.direction]
        for finding in getattr(record, field)
        if finding["tensor"] == tensor and isinstance(finding["error"], float)
    ]
    return max(found, default=None)
