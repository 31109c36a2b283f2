"""Records: what each case gave, one JSON line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from longca.errors import RequestError
from longca_bench.measuring.status import Status

__all__ = ["SCHEMA", "Record", "parse_records", "read_records"]

#: Version of the record's fields.
SCHEMA = 1


class Record(BaseModel):
    """What one case gave.

    Attributes:
        schema_version: Version of these fields.
        case: Hash of what was measured on what.
        suite: Name of the suite.
        suite_version: Its version.
        suite_digest: Hash of everything it says.
        status: `ok`; `unsupported`: no offer covers it; `wrong`: a result is not right, so no time is kept; `oom`:
            memory ran out; `error`: the kernel raised; `timeout`: it went past its deadline; `crashed`: its process
            died; `suspect`: faster than the device can be; `skipped`: not run, because an earlier case failed.
        message: The reasons, findings or error behind a status other than `ok`.
        advice: What to do about it.
        kernel: Name of the kernel, or of a pair such as `fa3+fa4`.
        distribution: Distribution that provides it; of a pair whose kernels have two, both, as in `a + b`. A pair's
            version, form and backend are likewise.
        distribution_version: Its version.
        form: Form the mask was put in.
        backend: Which function of which library ran.
        device: What it ran on.
        pattern: The mask's pattern.
        seqlen: Tokens.
        lengths: Where document lengths came from.
        seed: Seed of mask and inputs.
        factors: The mask's factors that the suite gives; what it does not give is drawn from the seed.
        heads_q: Query heads.
        heads_kv: Key and value heads.
        head_dim: Head dimension.
        dtype: Data type.
        direction: `forward`, or `backward` alone.
        mask_digest: Hash of what the mask shows.
        area: Visible pairs, over the mask's own heads.
        density: Visible pairs over all pairs.
        tile_efficiency: Area over that of the 128×128 tiles it touches.
        flops: Floating-point operations of the direction.
        plan_seconds: Time to put the mask on the device in the kernel's form; of ranks, the slowest's.
        first_seconds: Time of the first call: what compiling takes, and one call with its verification.
        metadata_bytes: Bytes of what the plan holds there.
        peak_bytes: The allocator's peak above the inputs, of ranks the highest; None on CPUs, where it is not known.
        samples: Seconds of each timed call; of several ranks, on the slowest.
        wall: Seconds by the host's clock from the call to its result, launching included.
        warm_up: Seconds of each call before them.
        median: Median of the samples, in seconds.
        tflops: flops over median, in 10¹² a second; of several ranks, for each.
        gpu: Clocks, power, temperature, throttle reasons and other processes right after timing; None on CPUs.
        verified_kv_heads: KV heads whose results, and their query heads', were verified; null for all.
        findings: The worst row of each verified tensor.
        strategy: Name of the context-parallel strategy; None for a kernel on one device, as in all that follow.
        placement: How tokens were to be placed on ranks: a placement, or `auto`.
        placed: How they were: what `auto` came to.
        world_size: Ranks.
        mesh: Ranks along each of the strategy's axes, such as `ring=2,ulysses=2`.
        layout_seconds: Time to find who holds and computes what, on the slowest rank, after the placement is known.
        rank_samples: Seconds of each timed call on each rank: [ranks][calls].
        rank_peak_bytes: Each rank's peak of memory.
        sent_bytes: Bytes that each rank sends in one call, by kind of collective: `p2p`, `all_to_all`, `all_gather`,
            `reduce_scatter`, `all_reduce` or `broadcast`.
        communication: The same collectives without kernels, by kind and as `all`: `calls` in number, `bytes` as
            nccl-tests count a collective's size, `seconds` as the median of the slowest rank's, and `algbw` and `busbw`
            in 10⁹ bytes a second.
        rank_compute_seconds: Median of each rank's kernel calls without collectives.
        hidden: Share of the time of communication that is hidden behind computing: (communication + compute − total) /
            communication, from 0 to 1; None where nothing is sent.
        area_imbalance: Visible pairs of the busiest rank over those of the average one.
        time_imbalance: The same of the time of the kernel calls.
        alone_seconds: Median of the kernel on one device, alone, with one rank's share of the query heads on the whole
            mask: as much work as a rank's, and no communication. None where heads do not divide among ranks, as is the
            next.
        abreast_seconds: The same on the slowest rank where all do it at once, each for itself.
        rank_abreast_seconds: Each rank's own median of that.
        alone_findings: The worst rows of the kernel without a strategy, on the same inputs.
        finished: When, in UTC, as ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    case: str
    suite: str
    suite_version: int
    suite_digest: str
    status: Status
    message: str = ""
    advice: str = ""
    kernel: str
    distribution: str
    distribution_version: str
    form: str | None = None
    backend: str | None = None
    device: str
    pattern: str
    seqlen: int
    lengths: str
    seed: int
    factors: dict[str, int | float | tuple[int, ...]] = {}
    heads_q: int
    heads_kv: int
    head_dim: int
    dtype: str
    direction: str
    mask_digest: str
    area: int
    density: float
    tile_efficiency: float
    flops: int
    plan_seconds: float | None = None
    first_seconds: float | None = None
    metadata_bytes: int | None = None
    peak_bytes: int | None = None
    samples: tuple[float, ...] = ()
    wall: tuple[float, ...] = ()
    warm_up: tuple[float, ...] = ()
    median: float | None = None
    tflops: float | None = None
    gpu: dict[str, Any] | None = None
    verified_kv_heads: tuple[int, ...] | None = None
    findings: tuple[dict[str, Any], ...] = ()
    strategy: str | None = None
    placement: str | None = None
    placed: str | None = None
    world_size: int | None = None
    mesh: str | None = None
    layout_seconds: float | None = None
    rank_samples: tuple[tuple[float, ...], ...] = ()
    rank_peak_bytes: tuple[int, ...] = ()
    sent_bytes: dict[str, tuple[int, ...]] = {}
    communication: dict[str, dict[str, int | float]] = {}
    rank_compute_seconds: tuple[float, ...] = ()
    hidden: float | None = None
    area_imbalance: float | None = None
    time_imbalance: float | None = None
    alone_seconds: float | None = None
    abreast_seconds: float | None = None
    rank_abreast_seconds: tuple[float, ...] = ()
    alone_findings: tuple[dict[str, Any], ...] = ()
    finished: str


def read_records(path: Path) -> Iterator[Record]:
    """The records of a run, from its folder or its file; of a case that was run again, the last.

    Raises:
        RequestError: There are none, or a line is not one; the message names the line.
    """
    file = path / "records.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read records from {file}: {error}") from None
    yield from {record.case: record for record in parse_records(lines, file)}.values()


def parse_records(lines: Iterable[str], source: Path) -> Iterator[Record]:
    """Records from lines.

    Args:
        lines: One record each.
        source: The file they are of, for messages.

    Raises:
        RequestError: A line is no record; the message names it.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield Record.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise RequestError(f"{source}, line {number}: {where}: {first['msg']}") from None
