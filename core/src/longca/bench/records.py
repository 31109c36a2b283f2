"""Records: one JSON line for each case, appended and flushed as it comes.

A run is a folder: `environment.json`, written once, and `records.jsonl`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from longca.errors import RequestError

__all__ = ["SCHEMA", "Record", "RunFolder", "Status", "read_records"]

#: Version of the record's fields.
SCHEMA = 1

Status = Literal["ok", "unsupported", "wrong", "oom", "error"]


class Record(BaseModel):
    """What one case gave.

    Attributes:
        schema_version: Version of these fields.
        case: Hash of what was measured on what.
        suite: Name of the suite.
        suite_version: Its version.
        suite_digest: Hash of everything it says.
        status: `ok`; `unsupported`: no offer covers it; `wrong`: the result is not right, so it was not timed; `oom`:
            memory ran out; `error`: the kernel raised.
        message: The reasons, findings or error behind a status other than `ok`.
        kernel: Name of the kernel.
        distribution: Distribution that provides it.
        distribution_version: Its version.
        form: Form the mask was put in.
        backend: Which function of which library ran.
        device: What it ran on.
        pattern: The mask's pattern.
        seqlen: Tokens.
        lengths: Where document lengths came from.
        seed: Seed of mask and inputs.
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
        plan_seconds: Time to put the mask on the device in the kernel's form.
        metadata_bytes: Bytes of what the plan holds there.
        peak_bytes: The allocator's peak above the inputs; None on CPUs, where it is not known.
        samples: Seconds of each timed call.
        warm_up: Seconds of each call before them.
        median: Median of the samples, in seconds.
        tflops: flops over median, in 10¹² a second.
        findings: The worst row of each verified tensor.
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
    metadata_bytes: int | None = None
    peak_bytes: int | None = None
    samples: tuple[float, ...] = ()
    warm_up: tuple[float, ...] = ()
    median: float | None = None
    tflops: float | None = None
    findings: tuple[dict[str, Any], ...] = ()
    finished: str


class RunFolder:
    """The folder of one run.

    Args:
        path: Where; made if it is not there.
        environment: What to write to `environment.json`.

    Raises:
        RequestError: It holds records already, or cannot be written to.
    """

    def __init__(self, path: Path, environment: dict[str, Any]) -> None:
        self.path, self.records = path, path / "records.jsonl"
        if self.records.exists():
            raise RequestError(f"{path} holds the records of another run; choose another folder with --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            text = json.dumps(environment, indent=2) + "\n"
            (path / "environment.json").write_text(text, encoding="utf-8")
            self._file = self.records.open("a", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"cannot write to {path}: {error.strerror}. Choose another folder with --out") from None

    def append(self, record: Record) -> None:
        """Adds a record, and sees it to the disk."""
        self._file.write(record.model_dump_json() + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_records(path: Path) -> Iterator[Record]:
    """The records of a run, from its folder or its file.

    Raises:
        RequestError: There are none, or a line is not one; the message names the line.
    """
    file = path / "records.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read records from {file}: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield Record.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise RequestError(f"{file}, line {number}: {where}: {first['msg']}") from None
