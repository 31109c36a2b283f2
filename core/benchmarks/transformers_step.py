"""Training steps of a Llama of transformers on packed documents, with several implementations of attention.

    python core/benchmarks/transformers_step.py [--seqlen 32768] [--steps 10] [--small] [--out FILE.json]
    torchrun --nproc-per-node 2 core/benchmarks/transformers_step.py --strategy ulysses [--out FILE.json]

One process measures `longca`, `sdpa`, `flash_attention_2` and `flex_attention`, each as `attn_implementation`. Several
ranks of `torchrun` measure `longca` under `context_parallel`. The sizes are those of Llama 3.2 1B, with 32000 words and
random weights. Layers are recomputed in the backward, because 128 K tokens do not fit otherwise. `--keep` keeps their
activations. All subjects train on the same documents, which change each step, and start from the same weights. The
first steps warm up and are not counted. A step lasts from an idle device until the devices of all ranks are done, by
the host's clock. Losses of a step must agree within 2 %; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plan_costs import attempted, write_rows
from small_llama import Batch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from training_step import ALIKE, WARM_UP, loss_difference
from transformers import LlamaConfig, LlamaForCausalLM

from longca import registry
from longca.integrations.transformers import context_parallel, register
from longca.kernels.base import torch_device
from longca.manifests.devices import current_device
from longca_bench.measuring.environment import surroundings

ALONE = ("longca", "sdpa", "flash_attention_2", "flex_attention")


def model_of(asked: argparse.Namespace, implementation: str, device: torch.device) -> Any:
    """A model with the weights that all subjects begin with."""
    heads, heads_kv = map(int, asked.heads.split(":"))
    sizes: dict[str, Any] = {
        "hidden_size": asked.width,
        "intermediate_size": asked.inner,
        "num_hidden_layers": asked.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads_kv,
        "head_dim": asked.head_dim,
        "vocab_size": asked.vocabulary,
        "max_position_embeddings": asked.seqlen,
        "attn_implementation": implementation,
    }
    torch.manual_seed(0)
    with device:
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    if not asked.keep:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def measured(asked: argparse.Namespace, subject: str, device: torch.device, mesh: DeviceMesh | None) -> dict[str, Any]:
    """The row of a subject: medians and all samples of the counted steps, and the losses of all steps."""
    model = model_of(asked, "sdpa" if mesh else subject, device)
    parallel = context_parallel(model, mesh, asked.strategy, kernel=asked.kernel) if mesh else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.rate, fused=True)
    losses, samples = [], []
    for step in range(WARM_UP + asked.steps):
        batch = Batch.draw(step, asked, device)
        labels = batch.tokens.masked_fill(batch.positions == 0, -100)[None]
        wait(device, mesh)
        start = time.perf_counter()
        given = {"input_ids": batch.tokens[None], "position_ids": batch.positions[None], "labels": labels}
        loss = model(**given, use_cache=False).loss
        loss.backward()
        if parallel:
            parallel.sync_gradients()
        optimizer.step()
        optimizer.zero_grad()
        wait(device, mesh)
        samples.append(time.perf_counter() - start)
        losses.append(loss.item())
        if device.type == "cuda" and step == WARM_UP - 1:
            torch.cuda.reset_peak_memory_stats(device)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    seconds = statistics.median(samples[WARM_UP:])
    return {
        "subject": subject,
        "ranks": mesh.size() if mesh else 1,
        "seconds": seconds,
        "tokens_per_second": asked.seqlen / seconds,
        "peak_bytes": largest(peak, device) if mesh and peak is not None else peak,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "losses": losses,
        "samples": samples[WARM_UP:],
    }


def wait(device: torch.device, mesh: DeviceMesh | None) -> None:
    """Waits until the device, and those of all ranks, are done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if mesh:
        dist.barrier()


def largest(value: float, device: torch.device) -> float:
    """The largest value of all ranks."""
    found = torch.tensor(float(value), device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    if row["status"] != "ok":
        return f"{row['subject']:20}{row['status']}: {row['message']}"
    memory = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}"
    numbers = f"{row['seconds'] * 1e3:>12.2f}{row['tokens_per_second']:>12.0f}{memory:>9}{row['losses'][-1]:>9.4f}"
    return f"{row['subject']:20}{row['ranks']:>6}{numbers}"


def arguments() -> argparse.Namespace:
    """The options. `--small` replaces the defaults of the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = "--small" in sys.argv
    sizes = {"seqlen": (32768, 256), "layers": (16, 2), "width": (2048, 64), "inner": (8192, 128)}
    sizes |= {"head-dim": (64, 16), "vocabulary": (32000, 64), "steps": (10, 2)}
    for name, (large, little) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=little if small else large)
    parser.add_argument("--heads", default="4:2" if small else "32:8", help="query heads and KV heads")
    parser.add_argument("--lengths", default="auto", help="the source of document lengths")
    parser.add_argument("--max-share", type=float, default=0.3 if small else None, help="cuts documents to this share")
    parser.add_argument("--rate", type=float, default=1e-3 if small else 1e-5, help="learning rate")
    parser.add_argument("--subjects", nargs="+", choices=ALONE, default=list(ALONE), help="on one device")
    parser.add_argument("--strategy", default="auto", help="the strategy of several ranks")
    parser.add_argument("--kernel", default="auto", help="the kernel of longca")
    parser.add_argument("--keep", action="store_true", help="keep the activations of layers")
    parser.add_argument("--small", action="store_true", help="a model for a CPU")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    return parser.parse_args()


def main() -> None:
    """Measures, prints a table and the losses' difference, and writes the record where asked to."""
    asked, ranks = arguments(), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    where = current_device()
    device, mesh = torch_device(where), None
    register(kernel=asked.kernel)
    if ranks > 1:
        mesh = init_device_mesh(device.type, (ranks,), mesh_dim_names=("cp",))
    rows = []
    for subject in ["longca"] if mesh else asked.subjects:
        row = attempted(lambda subject=subject: measured(asked, subject, device, mesh), where)  # type: ignore[misc]
        rows.append({"subject": subject, **row})
    difference = loss_difference(rows)
    if not mesh or mesh.get_rank() == 0:
        print(f"{'subject':20}{'ranks':>6}{'ms a step':>12}{'tokens/s':>12}{'GiB':>9}{'loss':>9}")
        print("\n".join(map(line, rows)))
        print(f"losses differ by at most {difference:.2%}; {ALIKE:.0%} are allowed")
        if asked.out:
            settings = {name: value for name, value in vars(asked).items() if name != "out"}
            about = {"settings": settings, "loss_difference": difference}
            write_rows(asked.out, {"environment": surroundings(registry(), where), **about}, rows)
    if mesh:
        dist.barrier()
        dist.destroy_process_group()
    if not difference <= ALIKE or all(row["status"] != "ok" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
