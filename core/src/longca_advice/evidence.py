"""Evidence: verified measurements, each with its source, as rows of a table that is quick to read.

There are three sources: the table that comes with LongCA, the history of this machine, and folders of records that the
user names. A file of evidence is JSON, one object a line. A line without a kernel begins a run: the rows after it were
measured on its device, with its package versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import groupby
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longca.errors import RequestError
from longca.manifests import Device
from longca.manifests.offers import DType
from longca.manifests.problem import product_dims
from longca.masks import MAX_SEQLEN
from longca_advice.devices import NO_DEVICE_REACHES, peak_tflops
from longca_advice.work import Work

__all__ = [
    "MESH",
    "Collected",
    "Moment",
    "Name",
    "Row",
    "Run",
    "SharedCall",
    "Version",
    "parse",
    "said",
    "shipped",
    "to_line",
    "to_lines",
]

Name = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**16)]
Version = Annotated[str, Field(max_length=400)]
Moment = Annotated[str, Field(pattern=r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00)?$")]
#: A mesh: its axes with their ranks, such as `ring=2,ulysses=2`.
MESH = r"^\w+=[1-9]\d{0,5}(,\w+=[1-9]\d{0,5})*$"


class Run(BaseModel):
    """The run that rows come from: its folder, or `this machine`.

    Attributes:
        device: The vendor's name of the device.
        capability: The device's compute capability, or None for a CPU.
        memory: The device's memory in bytes, or None if unknown.
        packages: Versions of the packages that were installed.
        versions: The version of the rows of each kernel, for rows without one of their own.
        finished: The time of rows without one of their own: that of the run's last measurement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Name
    device: Name
    capability: tuple[int, int] | None = None
    memory: int | None = None
    packages: dict[str, str] = {}
    versions: dict[Name, Version] = {}
    finished: Moment = ""

    @property
    def measured_on(self) -> Device:
        """The device, as problems have it."""
        return Device("cpu" if self.capability is None else "cuda", self.capability, self.memory, self.device)


class Collected(BaseModel):
    """The collectives of one kind that a call makes, measured without kernels.

    Attributes:
        calls: How many there are.
        bytes: Their size together, as nccl-tests count it. Of pushes, the bytes that leave the rank that sends most.
        seconds: Their time together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: Annotated[int, Field(ge=1)]
    bytes: Annotated[int, Field(ge=0)]
    seconds: Seconds

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> dict[str, Collected]:
        """The collectives of a record by kind. Bandwidths and the sum of all are left out."""
        kinds = {kind: dict(found) for kind, found in record["communication"].items() if kind != "all"}
        if "push" in kinds:
            kinds["push"]["bytes"] = max(record["sent_bytes"]["push"])
        return {kind: cls(**{name: found[name] for name in cls.model_fields}) for kind, found in kinds.items()}


class SharedCall(NamedTuple):
    """The properties of a strategy's call that are the same whenever it is measured again with a kernel."""

    mask: str
    heads: tuple[int, int]
    head_dims: tuple[int, int | None]
    capped: bool
    dtype: str
    direction: str
    strategy: str
    mesh: str
    placed: str
    pushes: bool


class Row(BaseModel):
    """One verified measurement.

    Attributes:
        case: Hash of the measured problem and its device.
        kernel: The kernel, or the pair.
        direction: `forward`, or `backward` alone.
        seconds: Median time of a call.
        pattern: The mask's pattern, or None for a mask without a pattern.
        seqlen: Queries.
        density: Visible pairs over all pairs.
        capped: Whether the scores had a soft cap.
        mask: Digest of the mask.
        work: The call's `Work`, as its values in order. Empty under a strategy.
        strategy: The strategy. None on one device, like all the attributes that follow.
        placed: The placement of the tokens. None if the kernel computes its steps in another way since.
        mesh: Ranks along each axis, such as `ring=2,ulysses=2`.
        compute: Time of the slowest rank's kernel calls alone.
        communication: The collectives by kind.
        observed: The values of `Observed` after the seconds. Empty if the strategy's schedule is unknown.
        peak: The allocator's peak above the inputs, in bytes, or None if it was not measured.
        plan: Bytes of the plan, or None if it was not measured or if the plan is of a pair.
        version: Distribution of the kernel and its version, or empty if unknown.
        finished: Time of the measurement, in UTC, as ISO 8601, or empty if unknown.
        busy: Whether the machine was busy while it was timed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: str = ""
    kernel: Name
    direction: Literal["forward", "backward"]
    seconds: Seconds
    pattern: str | None = None
    seqlen: Annotated[int, Field(ge=1, le=MAX_SEQLEN)]
    density: Annotated[float, Field(ge=0, le=1)]
    heads_q: Count
    heads_kv: Count
    head_dim: Count
    head_dim_v: Count | None = None
    capped: bool = False
    dtype: DType
    mask: str = ""
    work: tuple[str | Amount, ...] = ()
    strategy: str | None = None
    placed: str | None = None
    mesh: Annotated[str, Field(pattern=MESH)] | None = None
    compute: Seconds | None = None
    communication: dict[str, Collected] = {}
    observed: tuple[Amount, ...] = ()
    peak: Annotated[int, Field(ge=0)] | None = None
    plan: Annotated[int, Field(ge=0)] | None = None
    version: Version = ""
    finished: Moment = ""
    busy: bool = False
    run: Run = Run(run="this machine", device="unknown")

    @model_validator(mode="after")
    def _plausible(self) -> Row:
        # Earlier rows have no merged rows of tiles.
        needed = len(Work.__dataclass_fields__)
        if self.strategy is None and len(self.work) not in (needed - 1, needed):
            raise ValueError(f"work has {len(self.work)} values; it needs {needed}")
        if [isinstance(value, str) for value in self.work] != [place == 0 for place in range(len(self.work))]:
            raise ValueError("work is a path and then numbers")
        if self.tflops > (peak_tflops(self.run.device, self.dtype) or NO_DEVICE_REACHES):
            raise ValueError(f"{self.seconds} seconds would be {self.tflops:.0f} TFLOP/s, more than the device can do")
        return self

    @property
    def ranks(self) -> int:
        """Ranks that shared the call."""
        return prod(int(part.partition("=")[2] or 1) for part in (self.mesh or "").split(","))

    @property
    def flops(self) -> float:
        """Floating-point operations of the direction alone."""
        dims = product_dims(self.direction, self.head_dim, self.head_dim_v or self.head_dim)
        return 2 * dims * self.heads_q * self.density * self.seqlen**2

    @property
    def tflops(self) -> float:
        """Throughput of each rank, in 10¹² operations a second."""
        return 1e-12 * self.flops / self.seconds / self.ranks

    @property
    def call_work(self) -> Work:
        """The call's work, on one device."""
        return Work(*self.work)  # type: ignore[arg-type]  # the validator counts them

    @property
    def shared_call(self) -> SharedCall | None:
        """The call of a strategy, or None on one device and for an unknown mask."""
        if not (self.mask and self.strategy and self.mesh and self.placed):
            return None
        heads, dims = (self.heads_q, self.heads_kv), (self.head_dim, self.head_dim_v)
        about = (self.mask, heads, dims, self.capped, self.dtype, self.direction)
        return SharedCall(*about, self.strategy, self.mesh, self.placed, "push" in self.communication)

    @property
    def source(self) -> str:
        """The run and the case, for looking the row up, with the kernel's version and the day."""
        known = ", ".join(filter(None, (self.version, self.finished[:10])))
        return f"{self.run.run} {self.case}".strip() + f" ({known})" * bool(known)


@cache
def shipped() -> tuple[Row, ...]:
    """The rows of the table that comes with LongCA."""
    file = resources.files("longca_advice") / "evidence.jsonl"
    return tuple(parse(file.read_text(encoding="utf-8").split("\n"), "longca_advice/evidence.jsonl"))


def parse(lines: Iterable[str], source: str, first: int = 1) -> Iterator[Row]:
    """The rows of some lines.

    Raises:
        RequestError: A line is no row. The message names the line and the error.
    """
    run: Run | None = None
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("not an object")
            if "kernel" not in value:
                run = Run.model_validate(value)
                continue
            if run is not None:
                version = run.versions.get(str(value["kernel"]), "")
                value = {"run": run, "version": version, "finished": run.finished, **value}
            yield Row.model_validate(value)
        except ValidationError as error:
            raise RequestError(f"{source}, line {number}: {said(error, 'row')}. Correct or remove the line") from None
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{source}, line {number}: not JSON: {error}. Correct or remove the line") from None


def said(error: ValidationError, whole: str) -> str:
    """The first error of a model: its field, or the name of the whole, and the message."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg'].removeprefix('Value error, ')}"


def to_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Rows as the lines of a file, with a line before each run's rows. The line has their versions and their time."""
    for run, group in groupby(rows, lambda row: row.run):
        held = list(group)
        versions = {row.kernel: row.version for row in held if row.version}
        yield to_line(run.model_copy(update={"versions": versions, "finished": max(row.finished for row in held)}))
        for row in held:
            version = "" if versions.get(row.kernel, "") == row.version else row.version
            said = {"run": Row.model_fields["run"].default, "version": version, "finished": ""}
            yield to_line(row.model_copy(update=said))


def to_line(model: BaseModel) -> str:
    """A row or a run as one line."""
    return json.dumps(model.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
