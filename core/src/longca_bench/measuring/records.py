"""Records: the results of cases, with one JSON line each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypedDict

from longca.errors import RequestError
from longca.plain_text import dims_text
from longca_advice.evidence import MESH, said
from longca_bench.measuring.status import Status

__all__ = ["ENVIRONMENT", "RECORDS", "SCHEMA", "Record", "load_environment", "read_records", "records_of"]

RECORDS, ENVIRONMENT = "records.jsonl", "environment.json"
#: Version of the record's fields.
SCHEMA = 1

_POSITIVE, _NOT_NEGATIVE = Field(gt=0), Field(ge=0)
#: Integers are those of tables, which have 64 bits. Pairs and operations of the largest masks have more.
_IN_TABLES, _OF_PAIRS = Field(ge=-(2**63), lt=2**63), Field(ge=0, lt=2**128)
_Int = Annotated[int, _IN_TABLES]
_Pairs = Annotated[int, _OF_PAIRS]
_Name = Annotated[str, Field(min_length=1)]
#: Pydantic copies a dictionary that is a default value for every record.
_NONE: Any = Field(default_factory=dict)
_Times = tuple[Annotated[float, _POSITIVE], ...]
#: Results that a verified case has findings of, by its direction. Some kernels give no log-sum-exp.
_RESULTS = {"forward": {"out"}, "backward": {"dq", "dk", "dv"}}


class Finding(TypedDict):
    """The worst row of a verified tensor. Other keys tell where it is."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    tensor: str
    passed: bool
    error: float | None
    limit: NotRequired[float | None]


class Traffic(TypedDict):
    """The calls, bytes and bandwidths of one kind of collective, or of all."""

    calls: _Int
    bytes: _Int
    seconds: float
    algbw: float
    busbw: float


class GpuState(TypedDict, total=False):
    """The state of a GPU, as `longca_bench.measuring.gpu_state` reads it."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    sm_clock: int | float
    memory_clock: int | float
    power: int | float
    temperature: int | float
    throttle: list[str]


class MachineNoise(TypedDict):
    """The noise of a machine, as `longca_bench.measuring.noise` measures it."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    busy: bool
    why: str
    waited: NotRequired[int | float]
    measured: NotRequired[int]


class Record(BaseModel):
    """The record of one case. The section "A record" of docs/results.md has the meaning of each field, with its unit.

    Fields are None, empty or zero where they do not apply: those of a GPU on CPUs, and those of a strategy on one
    device. Earlier records may lack fields that have a default value. `step`, `stream` and `previous` are of earlier
    versions only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: _Int = SCHEMA
    case: str
    suite: str
    suite_version: _Int
    suite_digest: str
    status: Status
    message: str = ""
    advice: str = ""
    kernel: _Name
    distribution: str
    distribution_version: str
    form: str | None = None
    backend: str | None = None
    unverified: bool = False
    without_lse: bool = False
    device: str
    pattern: _Name
    seqlen: _Int
    lengths: str
    seed: _Int
    factors: dict[str, _Int | float | tuple[_Int, ...]] = _NONE
    heads_q: _Int
    heads_kv: _Int
    head_dim: _Int
    head_dim_v: Annotated[int | None, _IN_TABLES] = None
    softcap: Annotated[float | None, _POSITIVE] = None
    dtype: str
    direction: Literal["forward", "backward", "step"]
    sinks: bool = False
    mask_digest: str
    area: _Pairs
    density: float
    tile_efficiency: float
    flops: _Pairs
    plan_seconds: Annotated[float | None, _NOT_NEGATIVE] = None
    first_seconds: Annotated[float | None, _NOT_NEGATIVE] = None
    metadata_bytes: Annotated[int | None, _IN_TABLES] = None
    peak_bytes: Annotated[int | None, _IN_TABLES] = None
    samples: _Times = ()
    wall: _Times = ()
    warm_up: _Times = ()
    median: Annotated[float | None, _POSITIVE] = None
    tflops: Annotated[float | None, _NOT_NEGATIVE] = None
    gpu: GpuState | None = None
    judge_bytes: Annotated[int | None, _IN_TABLES] = None
    clocks: dict[str, float] = {}
    machine: MachineNoise | None = None
    verified_kv_heads: tuple[_Int, ...] | None = None
    findings: tuple[Finding, ...] = ()
    strategy: _Name | None = None
    strategy_distribution: str | None = None
    placement: str | None = None
    placed: str | None = None
    transport: str | None = None
    moved_by: str | None = None
    world_size: Annotated[int | None, _IN_TABLES] = None
    mesh: Annotated[str | None, Field(pattern=MESH)] = None
    layout_seconds: Annotated[float | None, _NOT_NEGATIVE] = None
    rank_samples: tuple[_Times, ...] = ()
    rank_peak_bytes: tuple[_Int, ...] = ()
    sent_bytes: dict[str, tuple[_Int, ...]] = _NONE
    communication: dict[str, Traffic] = _NONE
    rank_compute_seconds: tuple[float, ...] = ()
    hidden: float | None = None
    hidden_interval: tuple[float, float] | None = None
    area_imbalance: float | None = None
    time_imbalance: float | None = None
    alone_seconds: Annotated[float | None, _NOT_NEGATIVE] = None
    abreast_seconds: Annotated[float | None, _NOT_NEGATIVE] = None
    rank_abreast_seconds: tuple[float, ...] = ()
    alone_findings: tuple[Finding, ...] = ()
    stream: dict[str, Any] | None = None
    finished: str
    previous: str | None = None

    @property
    def dims_text(self) -> str:
        """The head dimension, or those of q and of v with a colon between."""
        return dims_text(self.head_dim, self.head_dim_v)

    @property
    def busy(self) -> str:
        """Why the machine was busy while the case was timed. Empty if it was quiet."""
        return (self.machine["why"] or "busy") if self.machine and self.machine["busy"] else ""

    @model_validator(mode="after")
    def _consistent(self) -> Record:
        self._check_times()
        lacking = [name for name in ("placement", "world_size", "mesh") if getattr(self, name) is None]
        if self.strategy is not None and lacking:
            raise ValueError(f"a strategy is given without {lacking[0]}")
        if self.communication and "all" not in self.communication:
            raise ValueError("the figures of all collectives together are missing; they have the name all")
        if self.status is Status.OK:
            self._check_verified()
        return self

    def _check_times(self) -> None:
        """Checks that the median is that of the samples, and that the throughput is that of the median."""
        if self.median is None:
            return
        found = median(self.samples) if self.samples else math.nan
        if not math.isclose(self.median, found, rel_tol=1e-6):
            raise ValueError(f"the median is {self.median}, and the median of the samples is {found}")
        reached = 1e-12 * self.flops / self.median / (self.world_size or 1)
        if self.tflops is not None and not math.isclose(self.tflops, reached, rel_tol=1e-6):
            raise ValueError(
                f"tflops is {self.tflops}, and {self.flops} operations in {self.median} seconds are {reached}"
            )

    def _check_verified(self) -> None:
        if self.median is None:
            raise ValueError("the status is ok, and there is no time; a verified case has samples and a median")
        if not self.findings:
            raise ValueError("the status is ok, and there are no findings; a verified case has one for each tensor")
        if lacking := _RESULTS.get(self.direction, set()) - {found["tensor"] for found in self.findings}:
            raise ValueError(f"the status is ok, and there is no finding of {min(lacking)}")
        if failed := [found["tensor"] for found in self.findings if not found["passed"]]:
            raise ValueError(f"the status is ok, and the finding of {failed[0]} did not pass")


def read_records(path: Path) -> Iterator[Record]:
    """The records of a run's folder or file, the last of each case. A line that is no record is a RequestError."""
    notes: list[str] = []
    records = {record.case: record for record in records_of(path, notes)}
    if notes:
        raise RequestError(notes[0])
    yield from records.values()


def records_of(path: Path, notes: list[str], *, whole: bool = False) -> Iterator[Record]:
    """The records in the lines of a run's folder or file, one at a time, without the lines that are no record.

    `notes` gets a sentence about each wrong line. If `whole`, a last line without an end is left out without a
    sentence. A file that cannot be read is a RequestError.
    """
    file = path / RECORDS if path.is_dir() else path
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                is_torn = not line.endswith(b"\n")
                if is_torn and whole:
                    return
                try:
                    yield Record.model_validate_json(line)
                except ValidationError as error:
                    torn = "it is torn, without an end: " if is_torn else ""
                    notes.append(f"{file}, line {number}: {torn}{said(error, 'record')}")
    except OSError as error:
        raise RequestError(f"cannot read records from {file}: {error.strerror}") from None


def load_environment(folder: Path) -> dict[str, Any] | None:
    """The environment of a run's folder, or None without `environment.json`. Any other file is a RequestError."""
    file = folder / ENVIRONMENT
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"cannot read {file}: {getattr(error, 'strerror', error)}") from None
    if not isinstance(found, dict):
        raise RequestError(f"cannot read {file}: it holds no environment, which is a JSON object")
    return found
