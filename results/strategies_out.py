"""How good predictions of strategies are: calls on 2 and 4 H200s, predicted without measurements of as many ranks.

python results/strategies_out.py                                              # print the tables
python results/strategies_out.py --out results/h200/advice/strategies_out.json # write them too

Kernel times, links and rates come from calls on one device and on the other number of ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longca import registry
from longca_advice.asked import Asked
from longca_advice.costs import CostModel
from longca_advice.devices import DEVICES
from longca_advice.evidence import Row, shipped
from longca_advice.from_records import PlacementChangedError, layout_of, recorded_transport
from longca_advice.sources import Links, Sources
from longca_advice.ways import Role, Way

__all__ = ["Left", "errors", "leave_out", "regret", "report"]

#: Where the runs are, and what evidence calls their device.
RUNS, DEVICE = Path(__file__).parent / "h200" / "distributed", "NVIDIA H200"


class Left(NamedTuple):
    """A measured call of a strategy, and what is predicted for it.

    Attributes:
        record: The record.
        seconds: Its measured median.
        predicted: The prediction from the cut of each step.
        rough: The prediction from the tiles of the whole mask.
    """

    record: dict[str, Any]
    seconds: float
    predicted: float
    rough: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.seconds - 1

    @property
    def rough_error(self) -> float:
        """The relative error of the rough prediction."""
        return self.rough / self.seconds - 1


def leave_out(rows: Sequence[Row], runs: Path = RUNS) -> list[Left]:
    """Each verified call of a strategy, predicted without calls of as many ranks.

    Calls of placements that have changed since they were measured are left out.

    Args:
        rows: The evidence.
        runs: The folder of runs.
    """
    costs, links = CostModel(rows), dict[int, Links]()
    found = []
    for record in _records(runs):
        ranks = record["world_size"]
        if ranks not in links:
            others = [row for row in rows if row.strategy is None or row.ranks != ranks]
            links[ranks] = Sources(tuple(others)).links(DEVICE, 8)
        with suppress(PlacementChangedError):
            found.append(_predicted(record, costs, links[ranks]))
    return found


def _records(runs: Path) -> Iterator[dict[str, Any]]:
    """The verified records, with the names of their runs. Runs with other chunks than the strategies' are left out."""
    for path in sorted(runs.glob("*/records.jsonl")):
        if "chunked" not in str(path):
            records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            found = (each for each in records if each["status"] == "ok" and each.get("stream") is None)
            yield from ({**each, "run": path.parent.name} for each in found)


def _predicted(record: dict[str, Any], costs: CostModel, links: Links) -> Left:
    kernel, direction, plugins = record["kernel"], record["direction"], registry()
    problem, layout = layout_of(plugins, record, DEVICES["h200"])
    asked = Asked(problem, direction == "backward", plugins, costs, None, (kernel,))
    way = Way(asked, links, layout, recorded_transport(record))
    roles: tuple[Role | None, ...] = ("both" if direction == "backward" else "forward", None)
    found = [way.timeline(kernel, direction, role) for role in roles]
    seconds = [timeline.seconds for timeline in found if timeline is not None]
    if len(seconds) < len(roles):
        raise ValueError(f"there is no evidence of {kernel} with {way.strategy}")
    return Left(record, record["median"], *seconds)


def errors(off: Iterable[float]) -> dict[str, float]:
    """The number of calls, and quantiles of the relative error."""
    sizes = np.abs(list(off))
    median, ninety, most = (float(np.quantile(sizes, q)) for q in (0.5, 0.9, 1))
    return {"calls": len(sizes), "median": median, "p90": ninety, "max": most}


def regret(left: Iterable[Left], same: Sequence[str], choice: Sequence[str]) -> dict[str, float]:
    """How much longer what is predicted fastest takes than what is fastest.

    Args:
        left: The calls.
        same: Fields that are the same in calls that are chosen from.
        choice: Fields that make a choice. Several calls of one count as their fastest.
    """
    groups: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for one in left:
        key, name = (tuple(one.record[field] for field in fields) for fields in (same, choice))
        groups[key][name].append((one.seconds, one.predicted))
    lost = []
    for choices in groups.values():
        if len(choices) > 1:
            measured, predicted = np.array([np.min(times, axis=0) for times in choices.values()]).T
            lost.append(float(measured[predicted.argmin()] / measured.min() - 1))
    return {"problems": len(lost), "mean": float(np.mean(lost)), "max": float(np.max(lost))}


def report() -> dict[str, Any]:
    """All tables, of the evidence that comes with LongCA."""
    left = leave_out(shipped())
    problem = ("run", "kernel", "mask_digest", "direction", "world_size")  # machines of two runs differ
    return {
        "errors": {
            "all": errors(one.error for one in left),
            "rough": errors(one.rough_error for one in left),
            **_by(left, lambda record: str(record["strategy"])),
            **_by(left, lambda record: f"{record['world_size']} ranks"),
        },
        "placements": regret(left, (*problem, "strategy", "mesh"), ("placed",)),
        "strategies": regret(left, problem, ("strategy", "mesh", "placed")),
    }


def _by(left: Sequence[Left], name: Callable[[dict[str, Any]], str]) -> dict[str, dict[str, float]]:
    names = sorted({name(one.record) for one in left})
    return {each: errors(one.error for one in left if name(one.record) == each) for each in names}


def main() -> None:
    """Prints the tables, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file to write the tables to")
    out = parser.parse_args().out
    found = report()
    sys.stdout.writelines(_lines(found))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{'error':<20}{'calls':>8}{'median':>9}{'p90':>9}{'max':>9}\n"
    for name, row in found["errors"].items():
        yield f"{name:<20}{row['calls']:>8}{row['median']:>9.1%}{row['p90']:>9.1%}{row['max']:>9.1%}\n"
    yield f"\n{'regret':<20}{'problems':>8}{'mean':>9}{'max':>9}\n"
    for name in ("placements", "strategies"):
        row = found[name]
        yield f"{name:<20}{row['problems']:>8}{row['mean']:>9.2%}{row['max']:>9.2%}\n"


if __name__ == "__main__":
    main()
