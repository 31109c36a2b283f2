"""The measured parts of the page on recommendations: how far predictions are from measurements.

The records lie in `results/h200/advice`. A record that is not there yet leaves its part out, with a sentence that says
so and how to make it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choosing_chart import Point, draw
from measured_page import DOCS, filled, link, table

from longca_bench.reports.recommendation import time_text

#: What makes each record, and what it says.
_MADE_BY = {
    "leave_out.json": ("How far predictions on one GPU are off", "python results/leave_out.py --out {path}"),
    "strategies_out.json": (
        "How far predictions on several GPUs are off",
        "python results/strategies_out.py --out {path}",
    ),
    "problems/problems.json": (
        "How far predictions are off on twenty problems that were measured after they were predicted",
        "python core/benchmarks/advice.py --out {folder}",
    ),
}
_NAMED = 3  # problems that are named
_WORST = 5  # calls that are listed


@dataclass(frozen=True)
class Places:
    """Where things lie.

    Attributes:
        records: The folder of what was measured and predicted.
        charts: The folder for charts, which are drawn when the docs are built.
    """

    records: Path = DOCS.parent / "results" / "h200" / "advice"
    charts: Path = DOCS / "_build" / "charts"


Row = Mapping[str, Any]


def fill(page: str, places: Places = Places()) -> str:
    """A page with its markers replaced."""
    return filled(page, MEASURED, lambda: places)


def errors(places: Places) -> str:
    """Errors by kernel, of calls on one GPU."""
    found = _json(places, "leave_out.json")
    if found is None:
        return _absent(places, "leave_out.json")
    inside = (
        f"{found['coverage']:.0%} of the measured times lie in the predicted interval, which is meant to hold 90 %."
    )
    return f"{_errors(found['errors'])}\n\n{inside}"


def new_sparse(places: Places) -> str:
    """Errors of block-sparse calls without any evidence of their pattern."""
    found = _json(places, "leave_out.json")
    if found is None:
        return _absent(places, "leave_out.json")
    apart = found["block-sparse without the whole pattern"]
    off = apart["errors"]
    return (
        f"Without any measurement of their pattern, {off['calls']} block-sparse calls are off by "
        f"{_percent(off['median'])} in the median and {_percent(off['p90'])} at the 90th percentile. Another "
        f"{off['unpredicted']} have no prediction. The interval holds {apart['coverage']:.0%} of the times."
    )


def regret(places: Places) -> str:
    """How much longer the recommended kernel takes than the fastest."""
    found = _json(places, "leave_out.json")
    return _absent(places, "leave_out.json") if found is None else _regret(found["regret"])


def chart(places: Places) -> str:
    """Draws predicted over measured times, and gives the picture's Markdown."""
    found = points(places)
    if not found:
        return _absent(places, "leave_out.json")
    places.charts.mkdir(parents=True, exist_ok=True)
    path = places.charts / "predicted.png"
    draw(found, later(places), path)
    return f"![Predicted over measured milliseconds, a point for each measured call]({link(path)})"


def worst(places: Places) -> str:
    """The calls whose predictions are furthest off, by the ratio of both times."""
    found = sorted(points(places), key=lambda point: -max(point.ratio, 1 / point.ratio))[:_WORST]
    body = [
        [f"`{p.kernel}`", p.direction, f"`{p.pattern}`", str(p.seqlen), *_times(p), f"{p.ratio:.2g} ×"] for p in found
    ]
    heads = ("kernel", "direction", "mask", "tokens", "predicted", "measured", "measured / predicted")
    return table(heads, body, left=(0, 1, 2)) if found else _absent(places, "leave_out.json")


def strategies(places: Places) -> str:
    """Errors and regrets of strategies."""
    found = _json(places, "strategies_out.json")
    if found is None:
        return _absent(places, "strategies_out.json")
    parts = [_errors(found["errors"], "calls of")]
    if "coverage" in found:
        parts.append(f"{found['coverage']:.0%} of the measured times lie in the predicted interval.")
    if "regret" in found:
        parts.append(_regret(found["regret"]))
    return "\n\n".join(parts)


def problems(places: Places) -> str:
    """The problems that were measured after they were predicted."""
    found = _json(places, "problems/problems.json")
    if found is None:
        return _absent(places, "problems/problems.json")
    about = found["summary"]
    if not about["ways_compared"]:
        return _absent(places, "problems/problems.json")
    said = (
        f"{about['ways_compared']} predicted times of {about['problems']} problems were measured. They are off by "
        f"{_percent(about['median_error'])} in the median and {_percent(about['p90_error'])} at the 90th percentile; "
        f"{_share(about['totals_inside'])} lie in their interval."
    )
    if about["problems_with_regret"]:
        said += (
            f" The first choice took {_percent(about['mean_regret'])} longer than the fastest of the measured choices "
            f"on average, and {_percent(about['worst_regret'])} at worst. It was the fastest in "
            f"{_share(about['fastest_was_first'])} of {about['problems_with_regret']} problems."
        )
    wrong = sorted((row for row in found["problems"] if "ways" in row), key=lambda row: -abs(_first(row)["error"] or 0))
    said += f" The first choices that are furthest off: {', '.join(map(_off, wrong[:_NAMED]))}."
    heads = ("problem", "first choice", "predicted", "measured", "error", "fastest", "regret")
    return f"{said}\n\n{table(heads, _problem_rows(found['problems']), left=(0, 1, 5))}"


def points(places: Places) -> list[Point]:
    """The calls of the record; none where it is not there."""
    path = places.records / "leave_out.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Point(row["kernel"], row["direction"], row["pattern"], int(row["seqlen"]), *map(float, _pair(row)))
        for row in rows
        if row["predicted"] != "nan"
    ]


def later(places: Places) -> list[Point]:
    """The calls of the problems that were measured after they were predicted."""
    found = _json(places, "problems/problems.json")
    rows = [row for row in found["problems"] if "ways" in row] if found else []
    return [
        Point(way["kernel"], direction, row["problem"]["mask"], row["problem"]["seqlen"], *_milliseconds(time))
        for row in rows
        for way in row["ways"]
        for direction, time in way["times"].items()
        if direction != "total" and time["measured"] and time["predicted"]
    ]


def _errors(rows: Mapping[str, Row], name: str = "calls by") -> str:
    heads = (name, "calls", "without a prediction", "median", "90th percentile", "worst")
    body = (
        [kind if " " in kind or kind in ("all", "dense", "block-sparse") else f"`{kind}`",
         f"{row['calls']}", f"{row.get('unpredicted', 0)}", *(_percent(row[name]) for name in ("median", "p90", "max"))]
        for kind, row in rows.items()
    )  # fmt: skip
    return table(heads, body)


def _regret(rows: Mapping[str, Row]) -> str:
    heads = ("choosing", "problems", "mean", "95th percentile", "worst")
    body = (
        [kind, f"{row['problems']}", *(_percent(row[name]) for name in ("mean", "p95", "max"))]
        for kind, row in rows.items()
    )
    return table(heads, body)


def _problem_rows(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if "ways" not in row:
            yield [row["name"], row["message"], *[""] * 5]
            continue
        first, total = row["ways"][0], _first(row)
        error = "–" if total["error"] is None else f"{total['error']:+.1%}"
        seconds = ("–" if total[name] is None else time_text(total[name]) for name in ("predicted", "measured"))
        fastest = f"`{row['fastest']}`" if row["fastest"] else "–"
        yield [row["name"], f"`{first['title']}`", *seconds, error, fastest, _share(row["regret"], 1)]


def _first(row: Row) -> Row:
    """Predicted and measured time of a problem's first choice, both directions together."""
    total: Row = row["ways"][0]["times"]["total"]
    return total


def _off(row: Row) -> str:
    error = _first(row)["error"]
    return f"{row['name']} ({'not measured' if error is None else f'{error:+.1%}'})"


def _times(point: Point) -> tuple[str, str]:
    return time_text(point.predicted / 1e3), time_text(point.measured / 1e3)


def _milliseconds(time: Row) -> tuple[float, float]:
    return 1e3 * time["measured"], 1e3 * time["predicted"]


def _pair(row: Mapping[str, str]) -> tuple[str, str]:
    return row["measured"], row["predicted"]


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 1 else f"{share:.0%}"


def _share(share: float | None, digits: int = 0) -> str:
    return "–" if share is None else f"{share:.{digits}%}"


def _json(places: Places, name: str) -> dict[str, Any] | None:
    path = places.records / name
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _absent(places: Places, name: str) -> str:
    said, command = _MADE_BY[name]
    path = places.records / name
    made = command.format(path=link(path).removeprefix("../"), folder=link(path.parent).removeprefix("../"))
    return f"*Not there yet: {said[0].lower()}{said[1:]}. `{made}` measures it.*"


#: Every measured part by its name.
MEASURED: dict[str, Callable[[Places], str]] = {
    "errors": errors,
    "regret": regret,
    "predicted": chart,
    "worst": worst,
    "new_sparse": new_sparse,
    "strategies": strategies,
    "problems": problems,
}
