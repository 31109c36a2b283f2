"""How good predictions are: each measured call is predicted from the evidence without the calls that look like it.

python results/leave_out.py                                          # print the tables
python results/leave_out.py --out results/h200/advice/leave_out.json # write them too

A dense call is predicted without the calls on its mask pattern. A block-sparse call is predicted without the calls on
its pattern, block size and kept share. Leaving out the whole pattern of block-sparse masks leaves some kernels with no
evidence at all, so that figure is reported apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longca_advice.costs import CostModel, Key
from longca_advice.evidence import Row, shipped
from longca_advice.fit import Call

__all__ = [
    "Left",
    "by_kernel",
    "coverage",
    "errors",
    "leave_out",
    "regret",
    "regrets",
    "seen",
    "structure",
    "usual",
]

#: A run of what other runs have none of: 1 K to 4 K tokens, and blocks of 32, 96 and 256. Without a call's own kind
#: hardly anything like it is left to predict it from, so that its figures are apart.
APART = "results/h200/advice/short"

#: Runs of calls in a row, as in training, of kernels that were measured on a rested device too.
LOADED = "results/h200/dense/loaded/"


class Left(NamedTuple):
    """A measured call, and what is predicted for it without calls like it; NaN where nothing can be."""

    record: Row
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.record.seconds - 1


def structure(row: Row) -> Hashable:
    """A dense mask's pattern; a block-sparse mask's pattern, block size and kept share."""
    return (row.pattern, row.call_work.path, round(row.density, 2)) if _sparse(row) else row.pattern


def leave_out(rows: Iterable[Row], group: Callable[[Row], Hashable] = structure) -> list[Left]:
    """Each call on one device, predicted from the calls of the other groups.

    Args:
        rows: The evidence. Rows under a strategy are passed over.
        group: What is left out together.
    """
    single = [row for row in rows if row.strategy is None]
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in single:
        groups[group(row)].append(row)
    found = []
    for name, left in groups.items():
        model = CostModel([row for row in single if group(row) != name])
        found += [_predicted(model, row) for row in left]
    return found


def seen(rows: Iterable[Row]) -> list[Left]:
    """Each call in a row of `LOADED`, predicted from all calls on one device, itself among them, as `auto` does."""
    single = [row for row in rows if row.strategy is None]
    model = CostModel(single)
    return [_predicted(model, row) for row in single if row.run.run.startswith(LOADED)]


def errors(left: Sequence[Left]) -> dict[str, float]:
    """How far predictions are off: the number of calls, and quantiles of the relative error."""
    off = np.abs([one.error for one in left if np.isfinite(one.predicted)])
    median, ninety, most = (float(np.quantile(off, q)) if len(off) else float("nan") for q in (0.5, 0.9, 1))
    return {"calls": len(off), "unpredicted": len(left) - len(off), "median": median, "p90": ninety, "max": most}


def usual(left: Iterable[Left]) -> list[Left]:
    """The calls of all runs but the one that is told apart."""
    return [one for one in left if one.record.run.run != APART]


def by_kernel(every: Sequence[Left]) -> dict[str, dict[str, float]]:
    """The errors of all calls, of the dense and of the block-sparse ones, of each kernel's, and of those apart."""
    left = usual(every)
    kernels = sorted({one.record.kernel for one in left})
    return {
        "all": errors(left),
        "dense": errors([one for one in left if not _sparse(one.record)]),
        "block-sparse": errors([one for one in left if _sparse(one.record)]),
        **{kernel: errors([one for one in left if one.record.kernel == kernel]) for kernel in kernels},
        "fa3 as layers": errors([one for one in left if _has_layers_of_fa3(one.record)]),
        "short or of other blocks": errors([one for one in every if one.record.run.run == APART]),
    }


def _has_layers_of_fa3(row: Row) -> bool:
    return (row.kernel, row.call_work.path) == ("fa3", "layers")


def coverage(left: Sequence[Left]) -> float:
    """The share of calls whose time lies within the predicted interval."""
    known = [one for one in left if np.isfinite(one.predicted)]
    return float(np.mean([one.low <= one.record.seconds <= one.high for one in known]))


def regrets(left: Sequence[Left]) -> dict[str, dict[str, float]]:
    """How much longer the recommended kernel takes than the fastest one, over problems with at least two kernels.

    Times of one kernel on one problem in several runs are merged by their median. `forward` and `backward` are single
    directions. `training` takes one kernel for both. `pairs` takes any two.
    """
    times: dict[Hashable, dict[tuple[str, str], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for one in left:
        row = one.record
        problem = (row.run.device, row.dtype, row.head_dim, row.mask, row.seqlen, row.heads_q, row.heads_kv)
        if np.isfinite(one.predicted):
            times[problem][row.kernel, row.direction].append((row.seconds, one.predicted))
    merged = [{k: np.median(np.array(v), axis=0) for k, v in found.items()} for found in times.values()]
    return {kind: regret(merged, kind) for kind in ("forward", "backward", "training", "pairs")}


def regret(problems: Sequence[Mapping[tuple[str, str], Any]], kind: str) -> dict[str, float]:
    """How much longer what is predicted fastest takes than what is fastest.

    Args:
        problems: For each problem, measured and predicted seconds by kernel and direction.
        kind: One of the kinds of `regrets`.
    """
    lost = []
    for times in problems:
        options = np.array(list(_options(times, kind)))
        if len(options) > 1:
            measured, predicted = options.T
            lost.append(measured[predicted.argmin()] / measured.min() - 1)
    return {
        "problems": len(lost),
        "mean": float(np.mean(lost)),
        "p95": float(np.quantile(lost, 0.95)),
        "max": float(np.max(lost)),
    }


def _options(times: Mapping[tuple[str, str], Any], kind: str) -> Iterator[Any]:
    """Measured and predicted seconds of each choice."""
    if kind in ("forward", "backward"):
        yield from (seconds for (_, direction), seconds in times.items() if direction == kind)
        return
    forwards = {kernel: seconds for (kernel, direction), seconds in times.items() if direction == "forward"}
    backwards = {kernel: seconds for (kernel, direction), seconds in times.items() if direction == "backward"}
    for first, before in forwards.items():
        yield from (before + after for second, after in backwards.items() if kind == "pairs" or first == second)


def _predicted(model: CostModel, row: Row) -> Left:
    key = Key(row.run.device, row.kernel, row.direction, row.dtype, row.head_dim)
    found = model.estimate(key, Call(row.call_work, row.heads_q, row.heads_kv))
    if found is None:
        return Left(row, *[float("nan")] * 3)
    return Left(row, found.seconds, found.low, found.high)


def _sparse(row: Row) -> bool:
    return row.call_work.path.startswith("block_sparse")


def report() -> dict[str, Any]:
    """All tables, for every call of the evidence that comes with LongCA."""
    left = leave_out(shipped())
    whole = [one for one in leave_out(shipped(), lambda row: row.pattern) if _sparse(one.record)]
    return {
        "errors": by_kernel(left),
        "coverage": coverage(left),
        "regret": regrets(usual(left)),
        "regret of loaded calls": regrets(seen(shipped())),
        "block-sparse without the whole pattern": {"errors": errors(whole), "coverage": coverage(whole)},
    }


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
    apart = found["block-sparse without the whole pattern"]
    yield f"{'error':<24}{'calls':>8}{'none':>6}{'median':>9}{'p90':>9}{'max':>9}\n"
    for name, row in {**found["errors"], "sparse, no pattern": apart["errors"]}.items():
        yield f"{name:<24}{row['calls']:>8}{row['unpredicted']:>6}" + _percents(row, "median", "p90", "max")
    yield f"\n{'regret':<40}{'problems':>8}{'mean':>9}{'p95':>9}{'max':>9}\n"
    for title in ("regret", "regret of loaded calls"):
        for name, row in found[title].items():
            yield f"{name + title.removeprefix('regret'):<40}{row['problems']:>8}" + _percents(
                row, "mean", "p95", "max"
            )
    yield f"\nwithin the 90 % interval: {found['coverage']:.1%}; without the whole pattern: {apart['coverage']:.1%}\n"


def _percents(row: dict[str, float], *names: str) -> str:
    return "".join(f"{row[name]:>9.2%}" for name in names) + "\n"


if __name__ == "__main__":
    main()
