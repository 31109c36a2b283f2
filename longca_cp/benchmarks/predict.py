"""Predicted against measured calls of strategies: `python longca_cp/benchmarks/predict.py RUN... [--out FILE.json]`.

It needs no GPU. The network and the overhead of a call are fitted to the records of one number of ranks, and tried on
the records of another number. The seconds of the kernels are measured ones without collectives. So errors come from the
schedule, the network and the timeline alone.

For each pair of numbers of ranks it prints the error of predictions, in the median and at the 90th percentile. Over all
records it prints the loss of placements: the time of the placement that is predicted fastest over the time of the
fastest, among measurements with one kernel, mask, direction and mesh. The exit code is 1 if the median is above 6 %,
the 90th percentile above 15 %, or a placement's loss above 3 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from longca import Device, Problem, masks, registry
from longca_advice.calls import StrategyCall, schedule_of
from longca_advice.evidence import Collected
from longca_advice.from_records import recorded_transport
from longca_advice.network import Network, Topology, fit_links, transferred
from longca_advice.rates import Rates, fit_rates
from longca_bench.measuring.records import Record, read_records

MEDIAN, NINETIETH, LOSS = 0.06, 0.15, 0.03

#: A record, and its call.
Measured = tuple[Record, StrategyCall]


@lru_cache(maxsize=8)
def mask_of(pattern: str, seqlen: int, lengths: str, seed: int, factors: str) -> masks.Mask:
    """A record's mask, drawn again."""
    return masks.sample(pattern, seqlen, lengths=lengths, seed=seed, **json.loads(factors))


def call_of(record: Record) -> StrategyCall:
    """The call that a record measured."""
    factors = json.dumps(record.factors, sort_keys=True)
    mask = mask_of(record.pattern, record.seqlen, record.lengths, record.seed, factors)
    fields = {name: getattr(record, name) for name in ("heads_q", "heads_kv", "head_dim", "dtype", "direction")}
    problem = Problem(mask=mask, device=Device("cuda", (9, 0)), **fields)
    assert mask.digest == record.mask_digest, f"the mask of {record.case} cannot be drawn again"
    sizes = {axis: int(ranks) for axis, _, ranks in (part.partition("=") for part in str(record.mesh).split(","))}
    layout = registry().layout(str(record.strategy), problem, sizes, record.placed)
    schedule = schedule_of(registry(), problem, layout, True, recorded_transport(vars(record)))
    assert schedule is not None, f"{record.strategy} does not say what it does"
    return StrategyCall(problem, layout, schedule, Topology(tuple(sizes.items())))


def fitted(calls: Sequence[Measured]) -> tuple[Network, Rates]:
    """The network and the overhead of a call, fitted to some calls."""
    each = ((str(record.mesh), Collected.of_record(record.model_dump())) for record, _ in calls)
    found = [row for mesh, moved in each for row in transferred(mesh, moved)]
    network = Network(fit_links(found))
    observed = (call.observed(measured(record), computed(record, call), network) for record, call in calls)
    return network, fit_rates(list(observed))


def measured(record: Record) -> float:
    """The seconds of a call."""
    assert record.median is not None, "only records that are ok are read"
    return record.median


def computed(record: Record, call: StrategyCall) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The seconds of each rank's steps."""
    return call.by_step(record.rank_compute_seconds)


def predicted(calls: Sequence[Measured], fit: tuple[Network, Rates]) -> list[float]:
    """The predicted seconds of some calls."""
    return [call.takes(computed(record, call), *fit).seconds for record, call in calls]


def crossed(calls: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """How far predictions are off, fitted to one number of ranks and tried on another."""
    worlds = sorted({call.layout.world_size for _, call in calls})
    for of in worlds:
        fit = fitted([pair for pair in calls if pair[1].layout.world_size == of])
        for on in worlds:
            tried = [pair for pair in calls if pair[1].layout.world_size == on]
            off = np.array(predicted(tried, fit)) / [measured(record) for record, _ in tried] - 1
            rates = {name: float(f"{value:.3g}") for name, value in vars(fit[1]).items()}
            sizes = {"median": np.median(abs(off)), "p90": np.quantile(abs(off), 0.9), "bias": off.mean()}
            about = {"fitted_to": of, "tried_on": on, "records": len(tried), "rates": rates}
            yield {**about, **{name: round(float(value), 4) for name, value in sizes.items()}}


def placements(calls: Sequence[Measured]) -> dict[str, Any]:
    """How much more the placement takes that is predicted to be quickest than the quickest one."""
    seconds: dict[tuple[Any, ...], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for (record, _), guess in zip(calls, predicted(calls, fitted(calls)), strict=True):
        key = (record.kernel, record.mask_digest, record.direction, record.strategy, record.mesh)
        seconds[key][str(record.placed)].append((measured(record), guess))
    losses = []
    for by_placement in seconds.values():
        best = {place: np.min(found, axis=0) for place, found in by_placement.items()}
        chosen = min(best.values(), key=lambda pair: float(pair[1]))[0]
        if len(best) > 1:
            losses.append(float(chosen / min(pair[0] for pair in best.values()) - 1))
    return {"choices": len(losses), "mean": round(float(np.mean(losses)), 4), "worst": round(max(losses), 4)}


def main() -> int:
    """Prints, and writes if asked, how good predictions are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    given = parser.parse_args()
    records = [record for run in given.runs for record in read_records(run)]
    calls = [(record, call_of(record)) for record in records if record.status == "ok" and record.strategy is not None]
    found: dict[str, Any] = {"crossed": list(crossed(calls)), "placements": placements(calls)}
    Console().print_json(data=found)
    if given.out:
        given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    missed = any(row["median"] > MEDIAN or row["p90"] > NINETIETH for row in found["crossed"])
    return int(missed or found["placements"]["worst"] > LOSS)


if __name__ == "__main__":
    sys.exit(main())
