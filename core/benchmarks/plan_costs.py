"""What planning a mask costs on a device, for the scripts beside this one: seconds, bytes and the allocator's peak."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from longca.kernels.base import Plan, torch_device
from longca.manifests import Device

SAMPLES = 5
BUDGET = 2.0  # seconds of samples after which a case gets no further one

T = TypeVar("T")


def clocked(make: Callable[[], T], device: Device) -> tuple[float, T, int | None]:
    """Seconds until the device is done, what was made, and the allocator's peak above what was there before."""
    on_gpu, where = device.kind == "cuda", torch_device(device)
    before = 0
    if on_gpu:
        torch.cuda.synchronize(where)
        torch.cuda.reset_peak_memory_stats(where)
        before = torch.cuda.memory_allocated(where)
    start = time.perf_counter()
    made = make()
    if on_gpu:
        torch.cuda.synchronize(where)
    seconds = time.perf_counter() - start
    return seconds, made, torch.cuda.max_memory_allocated(where) - before if on_gpu else None


def repeated(make: Callable[[], Any], device: Device) -> dict[str, Any]:
    """Median of five, or of as many as two seconds take; the peak is the last one's."""
    samples: list[float] = []
    peak = None
    while len(samples) < SAMPLES and sum(samples) < BUDGET:
        seconds, _, peak = clocked(make, device)
        samples.append(seconds)
    return {"seconds": statistics.median(samples), "samples": samples, "peak_bytes": peak}


def plan_costs(plan: Callable[[], Plan], device: Device) -> dict[str, Any]:
    """The first planning, which compiles, and its bytes; and what it takes after that."""
    first, made, _ = clocked(plan, device)
    metadata, lists = made.metadata_bytes, made.list_bytes
    workspace = getattr(made, "workspace_bytes", 0)  # of kernels that keep scratch memory with their plans
    del made
    return {
        "first_seconds": first,
        **repeated(plan, device),
        "metadata_bytes": metadata,
        "list_bytes": lists,
        "other_bytes": metadata - lists,
        "workspace_bytes": workspace,
    }


def attempted(make: Callable[[], dict[str, Any]], device: Device) -> dict[str, Any]:
    """What something gives; or that memory ran out, or what else was raised, so that other rows are measured still."""
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
