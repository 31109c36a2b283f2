"""Evidence from the records of runs: a record says which mask it is of, and the mask is drawn again for its tiles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import isclose
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from longca.errors import LongCAError, RequestError
from longca.manifests import Device, Layout, Problem, Transport
from longca.manifests.step_cuts import imbalance
from longca.masks import Form, Mask, get_pattern, sample
from longca.plugins import Registry
from longca_advice.evidence import Collected, Row, Run, said
from longca_advice.work import work_of

__all__ = [
    "PlacementChangedError",
    "half_at_fault",
    "half_of",
    "layout_of",
    "recorded_transport",
    "row_of",
    "run_of",
    "verified",
]

#: The results of a forward and of a backward. Counts are of lse.
_RESULTS = {"out", "lse", "counts"}, {"dq", "dk", "dv"}

#: The exceptions that a line of another shape raises.
_WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


def verified(
    folder: Path, name: str | None = None, factors: Mapping[str, Any] | None = None
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """The verified measurements of a run in a folder with `records.jsonl` and `environment.json`, each with its record.

    The name stands for the folder's in the rows. The factors by pattern are for records that do not name their own.

    Raises:
        RequestError: A file cannot be read, or a line is no record. The message names the line.
    """
    try:
        environment = json.loads((folder / "environment.json").read_bytes())
        run = run_of(environment, str(name or folder).encode("utf-8", "backslashreplace").decode())
        lines = (folder / "records.jsonl").read_bytes().split(b"\n")[:-1]  # a torn last line is no record
    except (ValueError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{folder} is no folder of a run: {reason}. Give one that `longca run` wrote") from None
    latest: dict[str, tuple[Row, dict[str, Any]] | None] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            given = (factors or {}).get(record["pattern"], {}) if "factors" not in record else {}
            # A stream has no one mask. Sinks take a part of the time of a kernel without its own.
            differs = record.get("stream") is not None or record.get("sinks")
            counts = record["status"] == "ok" and not differs
            latest[record["case"]] = (row_of(record, run, given), record) if counts else None
        except (*_WRONG, LongCAError) as error:
            reason = said(error, "record") if isinstance(error, ValidationError) else str(error)
            where = f"{folder / 'records.jsonl'}, line {number}"
            raise RequestError(f"{where}: {reason}. Correct or remove the line") from None
    yield from (found for found in latest.values() if found is not None)


def run_of(environment: Mapping[str, Any], name: str) -> Run:
    """The run that a captured environment describes.

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
    about: dict[str, Any] = {"capability": device.get("capability"), "memory": device.get("memory")}
    return Run(run=name, device=known, packages=versions, **about)


def row_of(
    record: Mapping[str, Any], run: Run, factors: Mapping[str, Any] | None = None, mask: Mask | None = None
) -> Row:
    """A verified record as evidence.

    Raises:
        ValueError: The drawn mask differs from the measured one.
    """
    same = ("case", "kernel", "direction", "pattern", "seqlen", "density", "heads_q", "heads_kv", "head_dim", "dtype")
    about = {name: record[name] for name in same} | {"seconds": record["median"], "mask": record["mask_digest"]}
    about |= {"head_dim_v": record.get("head_dim_v"), "capped": record.get("softcap") is not None}
    version = f"{half_of(record, 'distribution')} {half_of(record, 'distribution_version')}"
    about |= {"version": version, "finished": record["finished"]}
    about |= {"busy": (record.get("machine") or {}).get("busy", False)}
    if record.get("strategy") is None:
        drawn = mask or _drawn(record, factors or {})
        kernel, form = half_of(record, "kernel"), half_of(record, "form")
        values = vars(work_of(drawn, Form(form))).values()
        about |= {"kernel": kernel, "peak": record.get("peak_bytes")}
        about |= {"plan": record.get("metadata_bytes")} if kernel == record["kernel"] else {}
        return Row(**about, work=tuple(values), run=run)
    return Row(
        **about,
        strategy=record["strategy"],
        placed=record["placed"],
        mesh=record["mesh"],
        compute=max(record["rank_compute_seconds"]),
        communication=Collected.of_record(record),
        run=run,
    )


def half_of(record: Mapping[str, Any], name: str, half: int | None = None) -> str:
    """The part of a field that belongs to one kernel of a pair, or the field if a single kernel ran.

    The half is 0 for the forward's kernel, 1 for the backward's, and None for that of the record's direction.
    """
    parts = record[name].split("+")
    place = (0 if record["direction"] == "forward" else -1) if half is None else min(half, len(parts) - 1)
    return str(parts[place].strip())


def half_at_fault(tensors: Iterable[str]) -> int | None:
    """The half of a pair whose tensors are wrong: 0 for the forward's, 1 for the backward's. None if it may be either.

    The tensors are those of the findings that did not pass, such as `dq of a timed call`.
    """
    words = {tensor.partition(" ")[0] for tensor in tensors}
    return next((half for half, names in enumerate(_RESULTS) if words and words <= names), None)


def recorded_transport(record: Mapping[str, Any]) -> Transport:
    """The transport that moved a record's tensors. Earlier records do not say, and have collectives."""
    return Transport.COPY_ENGINE if Transport.COPY_ENGINE in (record.get("moved_by") or "") else Transport.COLLECTIVES


class PlacementChangedError(ValueError):
    """A record's placement places tokens in another way today, so the record is no evidence of it."""


def layout_of(registry: Registry, record: Mapping[str, Any], device: Device) -> tuple[Problem, Layout]:
    """The problem and the layout of a strategy that a record measured, with its mask drawn again.

    Two layouts count as the same if the busiest ranks have the same share of the visible pairs.

    Raises:
        ValueError: The drawn mask differs from the measured one.
        PlacementChangedError: The placement has changed since.
        UnknownNameError: Nobody provides the strategy.
    """
    about = {name: record[name] for name in ("heads_q", "heads_kv", "head_dim", "dtype", "direction")}
    problem = Problem(mask=_drawn(record, {}), device=device, head_dim_v=record.get("head_dim_v"), **about)
    sizes = {axis: int(ranks) for axis, _, ranks in (part.partition("=") for part in record["mesh"].split(","))}
    layout = registry.layout(record["strategy"], problem, sizes, record["placed"])
    measured = record.get("area_imbalance")
    if measured is not None and not isclose(imbalance(problem, layout), measured, rel_tol=1e-9):
        raise PlacementChangedError(f"the placement {record['placed']} has changed since it was measured")
    return problem, layout


def _drawn(record: Mapping[str, Any], factors: Mapping[str, Any]) -> Mask:
    given = {**factors, **record.get("factors", {})}
    if get_pattern(record["pattern"]).per_head:
        given.setdefault("heads", record["heads_kv"])
    text = json.dumps(given, sort_keys=True)
    mask = _sampled(record["pattern"], record["seqlen"], record["lengths"], record["seed"], text)
    if mask.digest != record["mask_digest"]:
        raise ValueError("the mask cannot be drawn again; it is of other lengths or of another version of LongCA")
    return mask


@lru_cache(maxsize=4)
def _sampled(pattern: str, seqlen: int, lengths: str, seed: int, factors: str) -> Mask:
    return sample(pattern, seqlen, lengths=lengths, seed=seed, **json.loads(factors))
