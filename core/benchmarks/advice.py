"""How good the predictions are, from the records in this repository. It needs no GPU.

python core/benchmarks/advice.py                 # print all figures
python core/benchmarks/advice.py --out FILE      # write them as JSON too
python core/benchmarks/advice.py --quick         # without the slow ones: strategies, and times of questions

Each measured call is predicted from evidence without the calls that look like it. A dense call is left out with its
mask pattern, and a block-sparse call with its pattern, block size and kept share. A call at another head dimension than
128 is left out with its pattern at that dimension, with its length there, and with all calls there. Calls of strategies
on 2 GPUs are predicted from those on 4, and the other way round.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from longca import masks, registry
from longca.adviser import adviser
from longca.manifests import Problem
from longca_advice.costs import CostModel, Key
from longca_advice.devices import DEVICES
from longca_advice.evidence import Row, shipped
from longca_advice.fit import Call
from longca_advice.from_records import PlacementChangedError, half_of, layout_of, recorded_transport
from longca_advice.layout_costs import LayoutCosts, Role
from longca_advice.memory import KernelMemory
from longca_advice.request import Request
from longca_advice.sources import Links, Sources

#: Runs like no others, whose figures are apart: 1 K to 4 K tokens with blocks of 32, 96 and 256, and narrow windows.
APART = {
    "results/h200/advice/short": "short or of other blocks",
    "results/h200/advice/windows": "windows of 128 and 256",
}

#: Where the runs on several GPUs are, and what evidence calls their device.
RUNS, DEVICE = Path(__file__).parents[2] / "results" / "h200" / "distributed", "NVIDIA H200"

#: The group of a call, or None.
Grouping = Callable[[Row], Hashable]

#: Kernels whose authors state their memory.
STATED = ("naive", "online")


class Left(NamedTuple):
    """A measured call, and what is predicted for it without calls like it."""

    row: Row
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.row.seconds - 1


def is_sparse(row: Row) -> bool:
    """Whether a call's mask is block-sparse."""
    return row.call_work.path.startswith("block_sparse")


def structure(row: Row) -> Hashable:
    """A dense mask's pattern; a block-sparse mask's pattern, block size and kept share."""
    return (row.pattern, row.call_work.path, round(row.density, 2)) if is_sparse(row) else row.pattern


def is_other_dim(row: Row) -> bool:
    """Whether a call is at another head dimension than 128. Its figures are apart, because calls like it are few."""
    return row.dtype == "bfloat16" and (row.head_dim, row.head_dim_v) != (128, None)


def at_its_dim(group: Grouping) -> Grouping:
    """The groups of calls at other head dimensions, at each of them. Calls at 128 have none."""
    return lambda row: (row.head_dim, row.head_dim_v, group(row)) if is_other_dim(row) else None


#: The calls that one at another head dimension is left out with.
AT_OTHER_DIMS = {
    "own pattern": at_its_dim(lambda row: row.pattern),
    "own length": at_its_dim(lambda row: row.seqlen),
    "own dims": at_its_dim(lambda row: ()),
}


def folds(rows: Iterable[Row], group: Grouping = structure) -> Iterator[tuple[list[Row], list[Row]]]:
    """The calls of each group on one device, and all other calls on one device. Calls without a group, and those with a
    soft cap, are others.
    """
    single = [row for row in rows if row.strategy is None]
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in single:
        groups[None if row.capped else group(row)].append(row)  # too few calls have a soft cap
    groups.pop(None, None)
    yield from ((left, [row for row in single if group(row) != name]) for name, left in groups.items())


def leave_out(rows: Iterable[Row], group: Grouping = structure) -> list[Left]:
    """Each call on one device that has a group, predicted from the calls outside it."""
    models = ((left, CostModel(others)) for left, others in folds(rows, group))
    return [_predicted(model, row) for left, model in models for row in left]


def _predicted(model: CostModel, row: Row) -> Left:
    found = model.estimate(Key.of_row(row), Call(row.call_work, row.heads_q, row.heads_kv))
    return Left(row, *([float("nan")] * 3 if found is None else (found.seconds, found.low, found.high)))


def memory_errors(rows: Iterable[Row]) -> list[float]:
    """The relative errors of the peaks of calls on one device, each learnt from the calls of other structures."""
    found = []
    for left, others in folds(row for row in rows if row.peak is not None and row.kernel not in STATED):
        learnt = KernelMemory(others)
        pairs = ((learnt.peak_of(row), row.peak) for row in left)
        found += [predicted / measured - 1 for predicted, measured in pairs if predicted and measured]
    return found


def errors(off: Iterable[float]) -> dict[str, float]:
    """The number of calls, and quantiles of the relative error."""
    sizes = np.abs([each for each in off if np.isfinite(each)])
    median, ninety, most = (float(np.quantile(sizes, q)) for q in (0.5, 0.9, 1)) if len(sizes) else [float("nan")] * 3
    return {"calls": len(sizes), "median": median, "p90": ninety, "max": most}


def coverage(left: Sequence[Left]) -> float:
    """The share of calls whose time lies within the predicted interval."""
    return float(np.mean([one.low <= one.row.seconds <= one.high for one in left if np.isfinite(one.predicted)]))


def regrets(left: Sequence[Left]) -> dict[str, dict[str, float]]:
    """How much longer the recommended kernel takes than the fastest one, over problems with at least two kernels.

    Times of one kernel on one problem in several runs are merged by their median. `forward` and `backward` are single
    directions. `training` takes one kernel for both. `pairs` takes any two.
    """
    times: dict[Hashable, dict[tuple[str, str], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for one in left:
        row = one.row
        shape = row.heads_q, row.heads_kv, row.head_dim, row.head_dim_v
        problem = (row.run.device, row.dtype, row.mask, row.seqlen, *shape)
        if np.isfinite(one.predicted):
            times[problem][row.kernel, row.direction].append((row.seconds, one.predicted))
    merged = [{k: np.median(np.array(v), axis=0) for k, v in found.items()} for found in times.values()]
    return {kind: regret(merged, kind) for kind in ("forward", "backward", "training", "pairs")}


def regret(problems: Sequence[Mapping[tuple[str, str], Any]], kind: str) -> dict[str, float]:
    """How much longer the choice that is predicted fastest takes than the fastest one.

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
    return {"problems": len(lost), "mean": float(np.mean(lost)), "p95": float(np.quantile(lost, 0.95))}


def _options(times: Mapping[tuple[str, str], Any], kind: str) -> Iterator[Any]:
    """Measured and predicted seconds of each choice."""
    if kind in ("forward", "backward"):
        yield from (seconds for (_, direction), seconds in times.items() if direction == kind)
        return
    forwards = {kernel: seconds for (kernel, direction), seconds in times.items() if direction == "forward"}
    backwards = {kernel: seconds for (kernel, direction), seconds in times.items() if direction == "backward"}
    for first, before in forwards.items():
        yield from (before + after for second, after in backwards.items() if kind == "pairs" or first == second)


class Shared(NamedTuple):
    """A measured call of a strategy, and what is predicted for it without calls on as many GPUs."""

    record: dict[str, Any]
    predicted: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / float(self.record["median"]) - 1


def strategies_left_out(rows: Sequence[Row], runs: Path = RUNS) -> list[Shared]:
    """Each verified call of a strategy, predicted without calls of as many ranks. Changed placements are left out."""
    costs, links, found = CostModel(rows), dict[int, Links](), list[Shared]()
    for path in sorted(runs.glob("*/records.jsonl")):
        if "chunked" in str(path):  # another schedule than today's
            continue
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            differs = record.get("stream") or record.get("sinks") or record.get("softcap")
            if record["status"] != "ok" or differs:
                continue
            ranks = record["world_size"]
            if ranks not in links:
                others = tuple(row for row in rows if row.strategy is None or row.ranks != ranks)
                links[ranks] = Sources(others).links(DEVICE, 8)
            with suppress(PlacementChangedError):
                found.append(Shared(record, _seconds(record, costs, links[ranks])))
    return found


def _seconds(record: dict[str, Any], model: CostModel, links: Links) -> float:
    kernel, direction, plugins = half_of(record, "kernel"), record["direction"], registry()
    problem, layout = layout_of(plugins, record, DEVICES["h200"])
    request = Request(replace(problem, allow_unverified=True), direction == "backward", plugins, model, None, (kernel,))
    alone = kernel == record["kernel"]
    role: Role = "forward" if direction == "forward" else "both" if alone else "backward"
    found = LayoutCosts(request, links, layout, recorded_transport(record)).timeline(kernel, direction, role)
    return float("nan") if found is None else found.seconds


def question_seconds() -> dict[str, float]:
    """CPU seconds of questions in fresh processes and of new layouts, and the memory of the largest question."""
    command = [sys.executable, "-m", "longca"]
    one, many = "recommend causal --seqlen 65536 --device h200", "recommend causal --seqlen 4194304 --device h200"
    questions = {
        "recommend, one GPU": one,
        "list-capabilities": "list-capabilities",
        "recommend, 512 GPUs, 4 M tokens": f"{many} --gpus 512 --network 400Gb",
    }
    found: dict[str, float] = {}
    for name, words in questions.items():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, *words.split()], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[name] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found["GB of the largest"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    for name, factors in {"causal_document": {}, "causal_sliding_window": {"window": 4096}}.items():
        found[f"layout by auto on 8 GPUs, {name}"] = min(_layout_seconds(name, seed, factors) for seed in range(4))
    return found


def _layout_seconds(pattern: str, seed: int, factors: dict[str, Any]) -> float:
    """The CPU time of choosing strategy, placement and kernel for a mask of 128 K tokens that is new."""
    mask = masks.sample(pattern, 131072 + 1024 * seed, seed=seed, **factors)
    problem = Problem(mask=mask, heads_q=64, heads_kv=8, head_dim=128, device=DEVICES["h200"])
    wanted = {"ulysses": {"ulysses": 8}, "ring_p2p": {"ring": 8}, "ring_all_gather": {"ring": 8}}
    began = time.process_time()
    adviser().arrange(registry(), [(problem, 1.0)], wanted, "auto", "auto", True)
    return time.process_time() - began


def report(*, quick: bool = False) -> dict[str, Any]:
    """All figures."""
    left = leave_out(shipped())
    at_128 = [one for one in left if not is_other_dim(one.row)]
    usual = [one for one in at_128 if one.row.run.run not in APART]
    dims = {name: leave_out(shipped(), group) for name, group in AT_OTHER_DIMS.items()}
    kernels = {
        "all": errors(one.error for one in usual),
        "dense": errors(one.error for one in usual if not is_sparse(one.row)),
        "block-sparse": errors(one.error for one in usual if is_sparse(one.row)),
        **{name: errors(one.error for one in usual if one.row.kernel == name) for name in _kernels(usual)},
        **{name: errors(one.error for one in at_128 if one.row.run.run == run) for run, name in APART.items()},
    }
    kernels |= {f"other dims, {name} left out": errors(one.error for one in at) for name, at in dims.items()}
    found: dict[str, Any] = {"kernels": kernels, "coverage": coverage(left), "regret": regrets(usual)}
    found["dims"] = {name: {"coverage": coverage(at), "regret": regrets(at)} for name, at in dims.items()}
    found["memory"] = {"peak of a call": errors(memory_errors(shipped()))}
    if quick:
        return found
    shared = strategies_left_out(shipped())
    names = sorted({one.record["strategy"] for one in shared})
    found["strategies"] = {"all": errors(one.error for one in shared)} | {
        name: errors(one.error for one in shared if one.record["strategy"] == name) for name in names
    }
    return {**found, "seconds": question_seconds()}


def _kernels(left: Iterable[Left]) -> list[str]:
    return sorted({one.row.kernel for one in left})


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for part in ("kernels", "strategies", "memory"):
        if part in found:
            yield f"\nrelative error, {part:<16}{'calls':>8}{'median':>9}{'p90':>9}{'max':>9}\n"
            for name, row in found[part].items():
                yield f"{name:<32}{row['calls']:>8}{row['median']:>9.2%}{row['p90']:>9.2%}{row['max']:>9.1%}\n"
    yield f"\n{'regret':<32}{'problems':>8}{'mean':>9}{'p95':>9}\n"
    for name, row in found["regret"].items():
        yield f"{name:<32}{row['problems']:>8}{row['mean']:>9.2%}{row['p95']:>9.2%}\n"
    yield f"\nwithin the 90 % interval: {found['coverage']:.1%}\n\n"
    for name, row in found["dims"].items():
        means = ", ".join(f"{kind} {regret['mean']:.2%}" for kind, regret in row["regret"].items())
        yield f"other dims, {name} left out: within {row['coverage']:.1%}, mean regret: {means}\n"
    yield from (f"{name:<48}{value:>8.2f}\n" for name, value in found.get("seconds", {}).items())


def main() -> None:
    """Prints the figures, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file to write the figures to")
    parser.add_argument("--quick", action="store_true", help="without strategies and times of questions")
    given = parser.parse_args()
    found = report(quick=given.quick)
    sys.stdout.writelines(_lines(found))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
