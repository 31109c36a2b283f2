"""Evidence from the records of runs: a record says which mask it is of, and the mask is drawn again for its tiles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from longca.errors import LongCAError, RequestError
from longca.manifests import Device, Problem
from longca.masks import PATTERNS, Form, Mask, sample
from longca.plugins import Registry
from longca_advice.calls import StrategyCall, schedule_of
from longca_advice.evidence import Collected, Row, Run
from longca_advice.links import links_of
from longca_advice.network import Network, Topology, fit_links
from longca_advice.work import work_of

__all__ = ["row_of", "rows_of_folder", "run_of", "strategy_call", "with_observed"]

#: The exceptions that a line of another shape raises.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def rows_of_folder(folder: Path, name: str | None = None, factors: Mapping[str, Any] | None = None) -> Iterator[Row]:
    """The verified measurements of a run.

    Args:
        folder: The run's folder, with `records.jsonl` and `environment.json`.
        name: The run's name, or None for the folder's name.
        factors: Factors by pattern, for records that are older than the field of the factors.

    Raises:
        RequestError: A file cannot be read, or a line is no record. The message names the line.
    """
    records, environment = folder / "records.jsonl", folder / "environment.json"
    try:
        lines = records.read_text(encoding="utf-8").splitlines()
        run = run_of(json.loads(environment.read_text(encoding="utf-8")), name or str(folder))
    except (OSError, ValueError) as error:
        raise RequestError(f"{folder} is no folder of a run: {error}. Give one that `longca run` wrote") from None
    latest: dict[str, Row | None] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or "status" not in record:
                raise ValueError("it is no record")
            given = (factors or {}).get(record["pattern"], {}) if "factors" not in record else {}
            latest[record["case"]] = row_of(record, run, given) if record["status"] == "ok" else None
        except ValidationError as error:
            first = error.errors()[0]
            said = f"{'.'.join(map(str, first['loc'])) or 'record'}: {first['msg'].removeprefix('Value error, ')}"
            raise RequestError(f"{records}, line {number}: {said}. Correct or remove the line") from None
        except (*_WRONG, LongCAError) as error:
            raise RequestError(f"{records}, line {number}: {error}. Correct or remove the line") from None
    yield from (row for row in latest.values() if row is not None)


def run_of(environment: Mapping[str, Any], name: str) -> Run:
    """The run that a captured environment describes.

    Args:
        environment: The content of `environment.json`.
        name: The run's name.

    Raises:
        ValueError: The environment names no device.
    """
    held = environment if isinstance(environment, dict) else {}
    device, packages = held.get("device"), held.get("packages")
    if not isinstance(device, dict) or not isinstance(packages, dict):
        raise ValueError("environment.json names no device or no packages")
    versions = {package: version for package, version in packages.items() if version is not None}
    known = device.get("name") or device.get("kind")
    if not known:
        raise ValueError("environment.json names no device")
    about = {"capability": device.get("capability"), "memory": device.get("memory")}
    return Run(run=name, device=known, packages=versions, **about)


def row_of(
    record: Mapping[str, Any], run: Run, factors: Mapping[str, Any] | None = None, mask: Mask | None = None
) -> Row:
    """A verified record as evidence.

    Args:
        record: The record.
        run: The run that the record comes from.
        factors: Factors of the mask that the record does not name.
        mask: The record's mask, or None to draw it again.

    Raises:
        ValueError: The drawn mask differs from the measured one.
    """
    same = ("case", "kernel", "direction", "pattern", "seqlen", "density", "heads_q", "heads_kv", "head_dim", "dtype")
    about = {name: record[name] for name in same} | {"seconds": record["median"], "mask": record["mask_digest"]}
    if record.get("strategy") is None:
        drawn = mask or _drawn(record, factors or {})
        # A pair's forward is its first kernel's, and its backward its second's.
        half = 0 if record["direction"] == "forward" else -1
        kernel, form = (record[name].split("+")[half].strip() for name in ("kernel", "form"))
        values = vars(work_of(drawn, Form(form))).values()
        return Row(**{**about, "kernel": kernel}, work=tuple(values), run=run)
    kinds = {kind: found for kind, found in record["communication"].items() if kind != "all"}
    return Row(
        **about,
        strategy=record["strategy"],
        placed=record["placed"],
        mesh=record["mesh"],
        compute=max(record["rank_compute_seconds"]),
        communication={
            kind: Collected(calls=found["calls"], bytes=found["bytes"], seconds=found["seconds"])
            for kind, found in kinds.items()
        },
        run=run,
    )


def strategy_call(registry: Registry, record: Mapping[str, Any]) -> StrategyCall | None:
    """The call of a strategy that a record measured, with its mask drawn again, or None if its schedule is unknown.

    Args:
        registry: Knows the strategy.
        record: The record, of several ranks.

    Raises:
        ValueError: The drawn mask differs from the measured one.
        UnknownNameError: Nobody provides the strategy.
    """
    about = {name: record[name] for name in ("heads_q", "heads_kv", "head_dim", "dtype", "direction")}
    problem = Problem(mask=_drawn(record, {}), device=Device("cuda", (9, 0)), **about)
    sizes = {axis: int(ranks) for axis, _, ranks in (part.partition("=") for part in record["mesh"].split(","))}
    layout = registry.layout(record["strategy"], problem, sizes, record["placed"])
    schedule = schedule_of(registry, problem, layout, nccl=True)
    return None if schedule is None else StrategyCall(problem, layout, schedule, Topology(tuple(sizes.items())))


def with_observed(rows: Iterable[Row], registry: Registry, records: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """The rows. A row under a strategy gets the values of its timeline, to which `Rates` are fitted.

    Args:
        rows: All rows of a device, since its network is fitted to them.
        registry: Knows the strategies.
        records: The records of the rows, by case.
    """
    kept = list(rows)
    network = Network(fit_links(list(links_of(kept))))
    for row in kept:
        call = strategy_call(registry, records[row.case]) if row.strategy is not None else None
        if call is None:
            yield row
            continue
        compute = call.by_step(records[row.case]["rank_compute_seconds"])
        found = call.observed(row.seconds, compute, network)
        yield row.model_copy(update={"observed": astuple(found)[1:]})


def _drawn(record: Mapping[str, Any], factors: Mapping[str, Any]) -> Mask:
    given = {**factors, **record.get("factors", {})}
    if PATTERNS[record["pattern"]].per_head:
        given.setdefault("heads", record["heads_kv"])
    text = json.dumps(given, sort_keys=True)
    mask = _sampled(record["pattern"], record["seqlen"], record["lengths"], record["seed"], text)
    if mask.digest != record["mask_digest"]:
        raise ValueError("the mask cannot be drawn again; it is of other lengths or of another version of LongCA")
    return mask


@lru_cache(maxsize=4)
def _sampled(pattern: str, seqlen: int, lengths: str, seed: int, factors: str) -> Mask:
    return sample(pattern, seqlen, lengths=lengths, seed=seed, **json.loads(factors))
