"""Writes the table of evidence that comes with LongCA, from the records of H200s in this folder.

The manifests of its kernels come with it, so that they are ranked where their plugins are not installed.

python results/make_evidence.py            # write it
python results/make_evidence.py --check    # compare it with what is there; exit code 1 where they differ
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from packaging.requirements import Requirement

from longca.discovery import CORE
from longca.manifests import Layout, Problem
from longca.manifests.step_cuts import step_problems
from longca.plugins import registry
from longca_advice.devices import DEVICES
from longca_advice.evidence import Row, to_line, to_lines
from longca_advice.from_records import PlacementChangedError, layout_of, recorded_transport, verified
from longca_advice.known_plugins import KnownPlugin
from longca_advice.network import Network, Topology, fit_links, transferred
from longca_advice.timeline import timeline

_Read = tuple[Row, dict[str, Any]]

RESULTS = Path(__file__).parent
TABLE = RESULTS.parent / "core" / "src" / "longca_advice" / "evidence.jsonl"
PLUGINS = TABLE.with_name("known_plugins.jsonl")

#: Runs that no prediction is to be learnt from, each with the reason.
LEFT_OUT = {
    "h200/distributed/chunked32k": "an earlier schedule: transfers of full masks beside the kernel",
    "h200/core/dtypes_bfloat16": "short calls in every dtype, which show that no honest kernel is suspected",
    "h200/core/dtypes_float16": "the same",
    "h200/core/dtypes_float16_again": "one of these cases again",
    "h200/core/dtypes_float32": "the same",
    "h200/advice/problems": "problems that predictions were held against; they stay unseen",
    "h200/dense/loaded/run8k": "calls took longer than since, and nobody knows why; loaded/pairs8k has its masks",
}


#: Runs whose shortest calls are left out, with the seconds from which calls are taken. Calls of 1 K to 4 K tokens take
#: as long as the host takes to launch them, and that differed by three times between calls that compute as much.
#: The factors by pattern of records that were made before records had them.
FIRST_FACTORS = {
    "full_sliding_window": {"window": 128},
    "causal_sliding_window": {"window": 256},
    "block_causal_document": {"block": 128},
}
FROM_SECONDS = {"h200/advice/short": 5e-4}

#: Since then fa3 computes layers otherwise: fewer calls, and less merging. Earlier records of layers say nothing of it.
LAYERS_SINCE = "2026-11-23T18:23"

#: Since then fa3 computes two chunks of a causal mask as two calls, and merges nothing.
RECTANGLES_SINCE = "2026-11-28T15:03"

#: Since then bsa's backward stores gradients of scores where heads share keys and all blocks have one size. It takes up
#: to 12 % less time so, and earlier records say nothing of it.
STORED_SINCE = "2026-11-23T18"
#: Since then it has a kernel for Hopper, measured on blocks of 64. Earlier records of these say nothing of it.
HOPPER_SINCE = "2026-11-28"
#: Since then its launches come earlier. Short calls waited for them, up to the length in tokens.
LAUNCHED_SINCE, LAUNCHED_UP_TO = "2026-11-28T05", 16_384

#: Since then a kernel's own calls come before each timed one. Before, an H200 had rested and had higher clocks, so that
#: a short call took less time than it does in a row of calls. If a call was measured in both ways, its rested times are
#: left out. Other rested times are scaled to those in a row.
LOADED_SINCE = "2026-11-24T05"
#: Runs of calls that were measured on a rested device before. They tell by how much times are scaled.
AGAIN = "h200/dense/loaded/*"
#: Calls for each point of the curve of factors over durations.
TOGETHER = 12


def rows() -> Iterator[Row]:
    """The rows of all runs, run by run."""
    found, again = _read("h200/*/*"), _read(AGAIN)
    curves = factors(found, again)
    kept = with_observed(as_loaded(in_one_condition([*found, *again]), curves))
    outdated = {row.case for row, record in found if computes_otherwise(record)}
    # Such a call says how long its transfers take, and not how long a call by this placement takes today.
    yield from (row.model_copy(update={"placed": None}) if row.case in outdated else row for row in kept)


def plugins() -> Iterator[str]:
    """The distributions of this repository but the core, as lines of their file."""
    for file in sorted([*RESULTS.parent.glob("*/pyproject.toml"), *RESULTS.parent.glob("plugins/*/pyproject.toml")]):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name, needs = project["name"], [Requirement(text).name for text in project["dependencies"]]
        found = next((plugin for plugin in registry().plugins if plugin.distribution == name), None)
        if name == CORE:
            continue
        kernels = [registry().manifest(kernel) for kernel in (found.kernels if found else ())]
        about = KnownPlugin(
            distribution=name,
            name=found.name if found else "",
            folder=file.parent.relative_to(RESULTS.parent).as_posix(),
            needs=tuple(need for need in needs if need.startswith("longca-") and need != CORE),
            kernels=tuple(one.model_copy(update={"workspace": None, "plan_bytes": None}) for one in kernels),
            strategies=tuple(found.strategies if found else ()),
        )
        yield to_line(about)


def with_observed(found: Iterable[_Read]) -> Iterator[Row]:
    """Rows. A row under a strategy gets the values of its timeline, to which `Rates` are fitted.

    Rows of placements that have changed since are left out.

    Args:
        found: All rows, since the network is fitted to them, each with its record.
    """
    kept = list(found)
    moved = (transferred(row.mesh, row.communication) for row, _ in kept if row.mesh is not None)
    network = Network(fit_links([one for each in moved for one in each]))
    for row, record in kept:
        if row.strategy is None:
            yield row
            continue
        try:
            problem, layout = layout_of(registry(), record, DEVICES["h200"])
        except PlacementChangedError:
            continue
        schedule = registry().stated(record["strategy"], "schedule", problem, layout, True, recorded_transport(record))
        if schedule is None:
            yield row
            continue
        compute = by_step(problem, layout, record["rank_compute_seconds"])
        seen = timeline(schedule, compute, network, Topology(layout.axis_sizes))
        observed = (seen.seconds, seen.touched, seen.beside, seen.beside_p2p, seen.count)
        yield row.model_copy(update={"observed": observed})


def by_step(problem: Problem, layout: Layout, rank_seconds: Sequence[float]) -> np.ndarray[Any, Any]:
    """The time of each rank's kernel calls, shared out to its steps by the tiles that they touch: [ranks, steps]."""
    rows = step_problems(problem, layout)
    tiles = np.array(
        [[part.area / part.concrete_mask.tile_efficiency() if part else 0.0 for part in parts] for parts in rows]
    )
    return tiles / np.maximum(tiles.sum(1, keepdims=True), 1.0) * np.array(rank_seconds)[:, None]


def _read(folders: str) -> list[_Read]:
    """The rows and records of runs."""
    found: list[_Read] = []
    for file in sorted(RESULTS.glob(f"{folders}/records.jsonl")):
        name = file.parent.relative_to(RESULTS).as_posix()
        if name in LEFT_OUT:
            continue
        early = FIRST_FACTORS if name in ("h200/core/quick", "h200/core/turns") else {}
        least = FROM_SECONDS.get(name, 0.0)
        pairs = verified(file.parent, f"results/{name}", early)
        kept = (pair for pair in pairs if pair[0].seconds >= least and not pair[0].busy)
        found += (pair for pair in kept if not is_left_out(name, pair[1]))
    return found


def factors(found: Iterable[_Read], again: Iterable[_Read]) -> dict[str, Curve]:
    """The time of a call in a row of calls over that on a rested device, by direction and duration.

    Args:
        found: Calls, some of them on a rested device.
        again: The same calls, each after others of its kind.
    """
    rested: dict[Hashable, list[float]] = defaultdict(list)
    for row, record in found:
        if is_rested(row, record):
            rested[_call(row)].append(row.seconds)
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row, _ in again:
        if seconds := rested.get(_call(row)):
            points[row.direction].append((median(seconds), row.seconds / median(seconds)))
    return {direction: Curve(each) for direction, each in points.items()}


class Curve:
    """The median factor over durations, and never less than 1.

    Args:
        points: Durations in seconds, each with a factor.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(points)
        groups = [ordered[at : at + TOGETHER] for at in range(0, len(ordered), TOGETHER)]
        full = [each for each in groups if 2 * len(each) >= TOGETHER]
        self._durations = [log(median(seconds for seconds, _ in each)) for each in full]
        self._factors = [max(1.0, median(factor for _, factor in each)) for each in full]

    def __call__(self, seconds: float) -> float:
        """The factor for a duration."""
        return float(np.interp(log(seconds), self._durations, self._factors))


def in_one_condition(found: Iterable[_Read]) -> list[_Read]:
    """Rows without the rested measurements of calls that were also measured in a row of calls."""
    kept = list(found)
    loaded = {_call(row) for row, record in kept if row.strategy is None and not is_rested(row, record)}
    return [(row, record) for row, record in kept if not is_rested(row, record) or _call(row) not in loaded]


def as_loaded(found: Iterable[_Read], curves: Mapping[str, Curve]) -> Iterator[_Read]:
    """Rows with the times that calls take in a row."""
    for row, record in found:
        if is_rested(row, record):
            yield row.model_copy(update={"seconds": row.seconds * curves[row.direction](row.seconds)}), record
        else:
            yield row, record


def is_rested(row: Row, record: dict[str, Any]) -> bool:
    """Whether a call was measured on one device that had rested."""
    return row.strategy is None and bool(record["finished"] < LOADED_SINCE)


def _call(row: Row) -> Hashable:
    """The properties of a call that are the same in each measurement of it."""
    shape = row.heads_q, row.heads_kv, row.head_dim, row.head_dim_v
    return row.kernel, row.direction, row.mask, *shape, row.capped, row.dtype


def is_left_out(run: str, record: dict[str, Any]) -> bool:
    """Whether no prediction is learnt from a record of a run."""
    return run in LEFT_OUT or _is_outdated(record)


def computes_otherwise(record: dict[str, Any]) -> bool:
    """Whether a strategy's kernel computes steps in another way since a record."""
    is_layered = record["kernel"] == "fa3" and "layers" in (record["form"] or "") and record["placed"] == "zigzag"
    return bool(record.get("strategy") and is_layered and record["finished"] < RECTANGLES_SINCE)


def _is_outdated(record: dict[str, Any]) -> bool:
    """Whether a kernel computes what a record measured in another way since."""
    if (record["kernel"], record["form"], record.get("strategy")) == ("fa3", "layers", None):
        return bool(record["finished"] < LAYERS_SINCE)
    about = record["kernel"], record["direction"], record["pattern"]
    if about != ("bsa", "backward", "uniform_block_sparse") or record["heads_kv"] == record["heads_q"]:
        return False
    since = STORED_SINCE
    if record["factors"].get("block") == 64:
        since = LAUNCHED_SINCE if record["seqlen"] <= LAUNCHED_UP_TO else HOPPER_SINCE
    return bool(record["finished"] < since)


def main() -> int:
    """Writes or checks the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    check = parser.parse_args().check
    texts = {PLUGINS: "".join(line + "\n" for line in plugins())}
    texts[TABLE] = "".join(line + "\n" for line in to_lines(rows()))
    if not check:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path.name}: {len(text.splitlines())} lines, {len(text) / 1e3:.0f} kB\n")
        return 0
    same = all(path.read_text(encoding="utf-8") == text for path, text in texts.items())
    sys.stdout.write("the tables are as the records say\n" if same else "a table differs; write them again\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
