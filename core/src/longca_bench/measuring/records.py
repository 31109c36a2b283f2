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
    """The record of one case.

    Attributes:
        schema_version: Version of these fields.
        case: Hash of the case and the device.
        suite: Name of the suite.
        suite_version: Version of the suite.
        suite_digest: Hash of the suite's content.
        status: `ok`, or one of the other statuses of `longca_bench.measuring.status.Status`.
        message: The reasons, findings or error of a status other than `ok`.
        advice: The remedy for a failure.
        kernel: Name of the kernel, or of a pair such as `fa3+fa4`.
        distribution: Distribution of the kernel. A pair from two distributions has both, as in `a + b`. A pair's
            version, form and backend are likewise.
        distribution_version: Version of the distribution.
        form: Form of the mask for the kernel.
        backend: Function and library that ran.
        unverified: Whether nobody had verified an offer of the kernel on this device, so that it ran by `--unverified`.
        without_lse: Whether the kernel gave no log-sum-exp, so that none was checked.
        device: Device of the run.
        pattern: The mask's pattern.
        seqlen: Tokens.
        lengths: Source of the document lengths.
        seed: Seed of mask and inputs.
        factors: The mask's factors that the suite gives. The others are drawn from the seed.
        heads_q: Query heads.
        heads_kv: Key and value heads.
        head_dim: Head dimension.
        dtype: Data type.
        direction: `forward`, or `backward` alone. Earlier versions have `step` for a stream of masks.
        mask_digest: Hash of the mask's visible pairs.
        area: Visible pairs, over the mask's own heads.
        density: Visible pairs over all pairs.
        tile_efficiency: Area over the area of the 128×128 tiles that it touches.
        flops: Floating-point operations of the direction.
        plan_seconds: Time to put the mask on the device in the kernel's form, on the slowest rank.
        first_seconds: Time of the first call with its compilation and its verification, on the slowest rank.
        metadata_bytes: Bytes of the plan's metadata on the device, on the rank with the most.
        peak_bytes: The allocator's peak above the inputs, with the windows into which peers push, on the rank with the
            highest. Earlier records lack the windows. None on CPUs.
        samples: Seconds of each timed call, on the slowest rank.
        wall: Seconds by the host's clock from the call to its result, with launching. Empty for several ranks.
        warm_up: Seconds of each call before the samples, on the slowest rank.
        median: Median of the samples, in seconds.
        tflops: flops over median for each rank, in 10¹² a second.
        gpu: Clocks, power, temperature, throttle reasons and other processes right after timing. None on CPUs.
        judge_bytes: Bytes that the judge took on the device, with the tensors that it shares. None on CPUs.
        clocks: Seconds of the samples by the worker's clock and by the runner's, the lower quartile of their distances
            in the shorter half of the samples, and the largest distance that is allowed. For several ranks they are
            those of the rank whose clocks are furthest apart. Empty in earlier records.
        machine: Noise of the machine during the timed calls: cores that other processes used, frequencies, drift of the
            samples, and whether and why the machine was busy. With `--wait-idle` also the seconds of waiting and the
            number of measurements. None in earlier records.
        verified_kv_heads: KV heads that were verified, with their query heads. None for all heads.
        findings: The worst row of each verified tensor.
        strategy: Name of the context-parallel strategy, which runs in the kernel's process. None on one device, like
            all fields below but `finished`.
        strategy_distribution: Distribution of the strategy and its version, as in `longca-cp 0.1.0`. None in earlier
            records.
        placement: The requested placement of tokens on ranks, or `auto`.
        placed: The placement that was measured, with `auto` resolved.
        transport: The requested way to move tensors. None if the strategy chose.
        moved_by: The transport of each axis, such as `ring=copy_engine`. None in earlier records, with collectives.
        world_size: Number of ranks.
        mesh: Ranks along each of the strategy's axes, such as `ring=2,ulysses=2`.
        layout_seconds: Time to compute the layout for a known placement, on the slowest rank.
        rank_samples: Seconds of each timed call on each rank: [ranks][calls].
        rank_peak_bytes: Each rank's peak of memory.
        sent_bytes: Bytes that each rank sends in one call, by kind of collective: `p2p`, `all_to_all`, `all_gather`,
            `reduce_scatter`, `all_reduce`, `broadcast` or `push`.
        communication: The same collectives without kernels, by kind and as `all`. `calls` is their number, `bytes`
            their size as nccl-tests count it, and `seconds` the median on the slowest rank. `algbw` and `busbw` are
            bandwidths in 10⁹ bytes a second.
        rank_compute_seconds: Median of each rank's kernel calls without collectives.
        hidden: Share of the communication's time that is hidden behind computing, from 0 to 1: (communication + compute
            − total) / communication. None if nothing is sent, if the interval holds all of 0 to 1, or if computing
            alone took longer than the total.
        hidden_interval: The 95 % interval of that. None if nothing is sent, if computing alone took longer than the
            total, and in earlier records, which measured computing and communication on colder devices than the total.
        area_imbalance: Visible pairs of the busiest rank over the pairs of the average rank.
        time_imbalance: Time of the kernel calls on the busiest rank over the time on the average rank.
        alone_seconds: Median of the kernel on one device, with one rank's share of the query heads on the whole mask,
            while the other ranks wait. It is a rank's work without communication. None if the heads do not divide among
            the ranks.
        abreast_seconds: The same on the slowest rank, when all ranks do it at once. None in the same case.
        rank_abreast_seconds: Each rank's own median of that.
        alone_findings: The worst rows of the kernel without a strategy, on the same inputs.
        stream: The steps of a stream of masks, which only earlier versions measured. Their direction is `step`.
        finished: Time of the record, in UTC, as ISO 8601.
        previous: Link to the line before, which only earlier versions wrote.
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
    dtype: str
    direction: Literal["forward", "backward", "step"]
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
    """The records of a run. If a case was run again, its last record counts.

    Args:
        path: The run's folder, or its file of records.

    Raises:
        RequestError: The file cannot be read, or a line is no record. The message names the line.
    """
    notes: list[str] = []
    records = {record.case: record for record in records_of(path, notes)}
    if notes:
        raise RequestError(notes[0])
    yield from records.values()


def records_of(path: Path, notes: list[str], *, whole: bool = False) -> Iterator[Record]:
    """The records in the lines of a file, one at a time, without the lines that are no record.

    Args:
        path: The run's folder, or its file of records.
        notes: The list to which a sentence about each wrong line is added.
        whole: Whether a last line without an end is left out without a sentence.

    Raises:
        RequestError: The file cannot be read.
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
    """The environment of a run, or None without `environment.json`.

    Raises:
        RequestError: The file cannot be read, or holds no environment.
    """
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
