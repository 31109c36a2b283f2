"""Rows of a benchmark's record: the problem of a training step, a row that may fail, and the file of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from longca.manifests import Device, Direction, Problem
from longca.masks import Mask


def training(mask: Mask, heads: str, device: Device, head_dim: int = 128) -> Problem:
    """The attention of a training step, in bfloat16, or in float32 on a CPU."""
    heads_q, heads_kv = map(int, heads.split(":"))
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        dtype="bfloat16" if device.kind == "cuda" else "float32",
        device=device,
        direction=Direction.BACKWARD,
    )


def attempted(make: Callable[[], dict[str, Any]], device: Device) -> dict[str, Any]:
    """The result, or the error, so that other rows are still measured. `oom` says that memory ran out."""
    try:
        return {"status": "ok", **make()}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {"status": "oom", "message": str(error)}
    except Exception as error:
        return {"status": "error", "message": f"{type(error).__name__}: {error}"}
    finally:
        if device.kind == "cuda":
            torch.cuda.empty_cache()


def write_rows(path: Path, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """A JSON object that ends with its rows, a line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, rows))
    path.write_text(f'{json.dumps(about)[:-1]},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")
