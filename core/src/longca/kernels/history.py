"""History: what was measured on this machine, in short, so that `kernel="auto"` can choose by it.

`longca run` appends a line for each verified measurement; the full records are in the run's own folder. The file is
`records.jsonl` in the user's data folder, or what LONGCA_HISTORY names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from longca.manifests import Problem

__all__ = ["Entry", "append", "entries", "history_path"]


@dataclass(frozen=True)
class Entry:
    """One verified measurement.

    Attributes:
        kernel: Name of the kernel.
        device: What the vendor calls the GPU, or `cpu`.
        direction: `forward` or `backward`.
        seconds: Median time of the direction alone.
        pattern: The mask's pattern; None for a mask of no pattern.
        seqlen: Queries.
        density: Visible pairs over all pairs.
        heads_q: Query heads.
        heads_kv: Key and value heads.
        head_dim: Head dimension.
        dtype: Data type.
    """

    kernel: str
    device: str
    direction: str
    seconds: float
    pattern: str | None
    seqlen: int
    density: float
    heads_q: int
    heads_kv: int
    head_dim: int
    dtype: str

    @staticmethod
    def of(kernel: str, problem: Problem, seconds: float) -> Entry:
        """A measurement of a kernel on a problem."""
        mask = problem.concrete_mask
        return Entry(
            kernel=kernel,
            device=problem.device.name if problem.device.kind == "cuda" else "cpu",
            direction=problem.direction,
            seconds=seconds,
            pattern=mask.pattern,
            seqlen=mask.seqlen_q,
            density=mask.density,
            heads_q=problem.heads_q,
            heads_kv=problem.num_heads_kv,
            head_dim=problem.head_dim,
            dtype=problem.dtype,
        )


def history_path() -> Path:
    """Where the history is kept."""
    named = os.environ.get("LONGCA_HISTORY")
    return Path(named) if named else platformdirs.user_data_path("longca") / "records.jsonl"


def append(entry: Entry) -> None:
    """Adds a measurement. A folder that cannot be written to is no error: the run's own records are elsewhere."""
    path = history_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            # One who was killed while writing left a line without an end; this one must not be lost with it.
            torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) and file.read(1) != b"\n"
            file.write(b"\n" * torn + json.dumps(asdict(entry)).encode() + b"\n")
    except OSError:
        return


def entries() -> Iterator[Entry]:
    """All measurements, oldest first; lines that are not whole are passed over."""
    try:
        lines = history_path().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield Entry(**json.loads(line))
        except (ValueError, TypeError):
            continue
