"""The cost of planning a mask on a device, for the scripts here: seconds, bytes and the allocator's peak."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from longca import registry
from longca.kernels.base import Plan, torch_device
from longca.manifests import Device, Direction, Problem
from longca.masks import BlockSparseMask, Mask, SliceMask

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


def fresh(mask: Mask) -> Mask:
    """The same mask with nothing worked out."""
    if isinstance(mask, BlockSparseMask):
        return BlockSparseMask.from_bits(mask.bits, mask.q_bounds, mask.k_bounds)
    assert isinstance(mask, SliceMask)
    return SliceMask(mask.array, mask.seqlen_q, mask.seqlen_k)


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


def planned(kernel: str, *problems: Problem) -> dict[str, Any]:
    """The costs of a kernel's plan for the first problem that it takes. The plan starts from a fresh mask."""
    verdicts = [registry().resolve(kernel, problem) for problem in problems]
    place = next((index for index, verdict in enumerate(verdicts) if verdict), -1)
    problem, verdict = problems[place], verdicts[place]
    if verdict.offer is None:
        return {"status": "unsupported", "message": " ".join(map(str, verdict.reasons))}

    def costs() -> dict[str, Any]:
        instance = registry().load(kernel)
        return plan_costs(lambda: instance.plan(problem.with_mask(fresh(problem.concrete_mask))), problem.device)

    about = {"direction": problem.direction, "form": str(verdict.offer.form)}
    return {**about, **attempted(costs, problem.device)}


def plan_costs(plan: Callable[[], Plan], device: Device) -> dict[str, Any]:
    """The first planning, which compiles, and its bytes. Then the seconds of later plannings."""
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
