"""Training steps of a Llama of transformers on packed documents, with several implementations of attention.

    python core/benchmarks/transformers_step.py [longca@32768 flex_attention@32768 ...] [--small] [--out FILE.json]
    torchrun --nproc-per-node 2 core/benchmarks/transformers_step.py [ulysses@32768 ...] [--out FILE.json]

A cell is a subject and a number of tokens. One process measures these, each as `attn_implementation`:

| subject | attention |
|---------|-----------|
| `longca`, `sdpa`, `flex_attention`, `flash_attention_2`, `flash_attention_4` | those of that name |
| `torch_varlen` | PyTorch's own FlashAttention-2 with the bounds of the documents |

Several ranks of `torchrun` measure `longca` under `context_parallel`, and a subject is a strategy. `torch_alltoall` and
`torch_allgather` are PyTorch's own context parallelism, which knows causal masks alone: `--lengths whole`. With
`--groups 2`, two groups of ranks have a batch each, and FSDP2 shards the weights between them. The sizes are those of
Llama 3.2 1B, with 32000 words and random weights. All cells of a length train on the same documents, which change
each step, and start from the same weights. All cells recompute layers in the backward, and compute the loss in parts of
8192 tokens, so that 128 K tokens fit.

The first two steps warm up and are not counted. A step lasts from an idle device until the devices of all ranks are
done, by the host's clock. Memory is the allocator's peak above the bytes that were held before the cell. Counted
steps end when the cell's time is over, and each cell compiles anew. Times are means of the steps that all cells of a
length have made, because each step has other documents. The record is written after each cell. Losses of a step must
agree within 2 %; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from llama_cell import WARM_UP, Cell, drawn, largest, torch_causal, torch_varlen
from rows import attempted, training, write_rows
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import AttentionInterface, AttentionMaskInterface

from longca import registry
from longca.kernels.base import torch_device
from longca.manifests.devices import current_device
from longca_advice.auto_kernel import choose
from longca_bench.measuring.environment import surroundings
from longca_transformers import register

ALONE = ("longca", "flash_attention_4", "flash_attention_2", "torch_varlen", "flex_attention", "sdpa")
LENGTHS = (32768, 131072)
ALIKE = 0.02  # relative difference of losses: bfloat16 has 8 bits, and each step starts from the last one's weights
COLLECTIVES = timedelta(seconds=90)  # a rank that waits longer than this has lost the others


def measured(asked: argparse.Namespace, subject: str, device: torch.device, mesh: DeviceMesh | None) -> dict[str, Any]:
    """The row of a cell: the samples and the losses of all steps, and the memory. `over_shared_steps` adds times."""
    on_gpu, peak, held = device.type == "cuda", None, None
    gc.collect()
    torch.compiler.reset()  # a second length would be compiled for all lengths
    if on_gpu:
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated(device)
    cell = Cell(asked, subject, device, mesh)
    losses, samples = cell.steps()
    if held is not None:
        peak = int(largest(torch.cuda.max_memory_allocated(device) - held, device, mesh))
    return {
        "ranks": mesh.size() if mesh else 1,
        "groups": asked.groups,
        "peak_bytes": peak,
        "peak_gib": None if peak is None else peak / 2**30,
        "held_bytes": held,
        "kernel": chosen(asked) if subject == "longca" and asked.kernel == "auto" else None,
        "parameters": sum(parameter.numel() for parameter in cell.model.parameters()),
        "losses": losses,
        "warm_up": samples[:WARM_UP],
        "samples": samples[WARM_UP:],
    }


def chosen(asked: argparse.Namespace) -> str:
    """The kernel that `auto` takes for the first counted step."""
    problem = training(drawn(WARM_UP, asked), asked.heads, current_device(), asked.head_dim)
    return choose(problem, registry()).kernel


def over_shared_steps(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by length, with the times of the steps that all rows of their length have: others have other documents."""
    timed = [row for row in rows if row["status"] == "ok"]
    shared = {
        tokens: min(len(row["samples"]) for row in timed if row["seqlen"] == tokens)
        for tokens in {row["seqlen"] for row in timed}
    }
    found = []
    for row in rows:
        if row["status"] == "ok":
            steps = shared[row["seqlen"]]
            seconds = statistics.fmean(row["samples"][:steps])
            tokens = row["seqlen"] * row["groups"]
            row = row | {"steps": steps, "seconds": seconds, "tokens_per_second": tokens / seconds}
        found.append(row)
    return sorted(found, key=lambda row: int(row["seqlen"]))


def loss_difference(rows: Sequence[dict[str, Any]]) -> float:
    """The largest relative difference between the losses of a step of one length. A loss that is NaN gives NaN."""
    each: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        for step, loss in enumerate(row.get("losses", ())):
            each[row["seqlen"], step].append(loss)
    if any(loss != loss for losses in each.values() for loss in losses):
        return float("nan")
    return max((max(losses) / min(losses) - 1 for losses in each.values()), default=0.0)


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    about = f"{row['subject']:20}{row['seqlen']:>9}"
    if row["status"] != "ok":
        return f"{about}  {row['status']}: {row['message'][:300]}"
    memory = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}"
    numbers = f"{row['seconds'] * 1e3:>12.2f}{row['tokens_per_second']:>12.0f}{memory:>9}{row['losses'][-1]:>9.4f}"
    return f"{about}{row['ranks']:>6}{numbers}{row['steps']:>7}"


def arguments() -> argparse.Namespace:
    """The options. `--small` replaces the defaults of the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = "--small" in sys.argv
    sizes = {"layers": (16, 2), "width": (2048, 64), "inner": (8192, 128)}
    sizes |= {"head-dim": (64, 16), "vocabulary": (32000, 64), "steps": (10, 2)}
    parser.add_argument("cells", nargs="*", metavar="SUBJECT@TOKENS", help="what is measured, in this order")
    for name, (large, little) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=little if small else large)
    parser.add_argument("--heads", default="4:2" if small else "32:8", help="query heads and KV heads")
    parser.add_argument("--lengths", default="auto", help="the source of document lengths, or `whole`")
    parser.add_argument("--max-share", type=float, default=0.3 if small else None, help="cuts documents to this share")
    parser.add_argument("--rate", type=float, default=1e-3 if small else 1e-5, help="learning rate")
    parser.add_argument("--kernel", default="auto", help="the kernel of longca")
    parser.add_argument("--groups", type=int, default=1, help="groups of ranks, each with a batch of its own")
    parser.add_argument("--seconds", type=float, default=60.0, help="counted steps of a cell end after this time")
    parser.add_argument("--small", action="store_true", help="a model for a CPU")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    return parser.parse_args()


def cells_of(asked: argparse.Namespace, ranks: int) -> list[tuple[str, int]]:
    """The subject and the tokens of each cell."""
    subjects = ALONE if ranks == 1 else ("ulysses", "ring_p2p")
    given = asked.cells or [f"{each}@{tokens}" for tokens in ((256,) if asked.small else LENGTHS) for each in subjects]
    return [(name, int(tokens)) for name, _, tokens in (cell.partition("@") for cell in given)]


def main() -> None:
    """Measures, prints a table and the losses' difference, and writes the record where asked to."""
    asked, ranks = arguments(), int(os.environ.get("WORLD_SIZE", "1"))
    where = current_device()
    device, mesh = torch_device(where), None
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    register(kernel=asked.kernel)
    for function in (torch_varlen, torch_causal):
        AttentionInterface.register(function.__name__, function)
        AttentionMaskInterface.register(function.__name__, lambda *_args, **_others: None)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=COLLECTIVES)
        mesh = init_device_mesh(device.type, (asked.groups, ranks // asked.groups), mesh_dim_names=("dp", "cp"))
    is_first = not mesh or mesh.get_rank() == 0
    settings = {name: value for name, value in vars(asked).items() if name not in ("out", "cells")}
    environment = surroundings(registry(), where) if is_first else None
    rows: list[dict[str, Any]] = []
    if is_first:
        heads = f"{'ranks':>6}{'ms a step':>12}{'tokens/s':>12}{'GiB':>9}{'loss':>9}{'steps':>7}"
        print(f"{'subject':20}{'tokens':>9}{heads}", flush=True)
    for subject, tokens in cells_of(asked, ranks):
        asked.seqlen = tokens
        row = attempted(partial(measured, asked, subject, device, mesh), where)
        rows.append({"subject": subject, "seqlen": tokens, **row})
        if is_first:
            print(line(over_shared_steps(rows[-1:])[0]), flush=True)
        if is_first and asked.out:
            about = {"environment": environment, "settings": settings, "loss_difference": loss_difference(rows)}
            write_rows(asked.out, about, over_shared_steps(rows))
    difference = loss_difference(rows)
    if is_first:
        print("\nover the steps that all cells of a length made:", *map(line, over_shared_steps(rows)), sep="\n")
        print(f"losses differ by at most {difference:.2%}; {ALIKE:.0%} are allowed")
    if mesh:
        dist.barrier()
        dist.destroy_process_group()
    if not difference <= ALIKE or all(row["status"] != "ok" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
