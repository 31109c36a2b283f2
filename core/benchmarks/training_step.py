"""Training steps of a small Llama-shaped model on packed documents that change each step, with four kinds of attention.

    python core/benchmarks/training_step.py [--seqlen 32768] [--steps 10] [--small]
        [--out results/h200/dense/training_step.json]

| subject          | attention | made in each step |
|------------------|-----------|-------------------|
| `longca`         | `longca.attention(kernel="auto")` | a mask of the documents |
| `flex`           | `flex_attention`, compiled with the model | a block mask, by a compiled `create_block_mask` |
| `sdpa_dense`     | `scaled_dot_product_attention` on repeated KV heads | a dense mask of Sq × Sk, if it fits |
| `sdpa_documents` | `scaled_dot_product_attention`, a causal call for each document, outside of the graph | nothing |

The model has RMSNorm, rotary positions that begin anew in each document, grouped heads and SwiGLU, and is compiled.
Each subject has its own copy of the weights and trains on the same tokens. Subjects take turns in each step. The first
steps warm up and are not counted. A step lasts from an idle device until the device is done, by the host's clock. Its
parts are marked on the device. Losses of a step must agree within 2 %; otherwise the exit code is 1. The defaults fit
into the memory of an H200.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from changing_masks import Compilations
from kinds_of_attention import KINDS
from plan_costs import attempted, training, write_rows
from small_llama import Batch, Model, drawn
from torch import Tensor

from longca import registry
from longca.kernels.base import torch_device
from longca.manifests.devices import current_device
from longca_advice.auto_kernel import choose
from longca_bench.measuring.environment import surroundings

WARM_UP = 3
ALIKE = 0.02  # relative difference of losses: bfloat16 has 8 bits, and each step starts from the last one's weights
PARTS = ("prepare", "forward", "backward", "optimizer")


class Marks:
    """Marks between the parts of a step: events on a GPU, and the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.marks: list[Any] = []

    def set(self) -> None:
        """Sets a mark."""
        if self.on_gpu:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def parts(self) -> dict[str, float]:
        """Seconds of each part. The device is done."""
        spans = zip(self.marks, self.marks[1:], strict=False)
        seconds = (a.elapsed_time(b) / 1e3 if self.on_gpu else b - a for a, b in spans)
        return dict(zip(PARTS, seconds, strict=True))


@dataclass
class Subject:
    """A model with one kind of attention, and its steps.

    Attributes:
        name: Its name.
        model: The model.
        compiled: The compiled model.
        prepare: Makes a step's mask.
        optimizer: Its optimizer.
        taken: The result of each step.
    """

    name: str
    model: Model
    compiled: Any
    prepare: Callable[[Batch], Any]
    optimizer: torch.optim.Optimizer
    taken: list[dict[str, Any]] = field(default_factory=list)

    @property
    def state_bytes(self) -> int:
        """Bytes of the weights and the optimizer's state."""
        states = (x for each in self.optimizer.state.values() for x in each.values() if isinstance(x, Tensor))
        return sum(x.nbytes for x in (*self.model.parameters(), *states))

    def step(self, batch: Batch, compilations: Compilations) -> dict[str, Any]:
        """Takes a step: its loss, seconds, peak of memory beyond the state, and compilations."""
        device, before = batch.tokens.device, compilations.count
        marks, held = Marks(device), 0
        if marks.on_gpu:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
        start = time.perf_counter()
        marks.set()
        mask = self.prepare(batch)
        marks.set()
        loss = self.compiled(batch.tokens, batch.targets, batch.positions, mask)
        marks.set()
        loss.backward()
        marks.set()
        self.optimizer.step()
        self.optimizer.zero_grad()
        marks.set()
        if marks.on_gpu:
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated(device) - held if marks.on_gpu else None
        compiled = compilations.count - before
        return {"loss": loss.item(), "seconds": seconds, **marks.parts(), "peak": peak, "compilations": compiled}


def subject(name: str, asked: argparse.Namespace, device: torch.device) -> Subject:
    """A subject with the weights that all subjects begin with."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    kind = KINDS[name](asked, device, dtype)
    torch.manual_seed(0)
    with device:
        model = Model(asked, kind.attend).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.rate, fused=True)
    return Subject(name, model, torch.compile(model, backend=asked.backend), kind.prepare, optimizer)


def measure(asked: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """The rows of all subjects, which take turns in each step. A subject that fails takes no further steps."""
    where, compilations = current_device(), Compilations()
    subjects: list[Subject] = []
    failed = []
    for name in asked.subjects:
        made = attempted(lambda name=name: {"made": subject(name, asked, device)}, where)  # type: ignore[misc]
        if made["status"] == "ok":
            subjects.append(made["made"])
        else:
            failed.append({"subject": name, **made})
    for step in range(WARM_UP + asked.steps):
        batch, turn = Batch.draw(step, asked, device), step % max(1, len(subjects))
        for each in (*subjects[turn:], *subjects[:turn]):
            taken = attempted(partial(each.step, batch, compilations), where)
            if taken["status"] == "ok":
                each.taken.append(taken)
            else:
                failed.append({"subject": each.name, **taken})
                subjects.remove(each)
    return [*(_row(each, asked) for each in subjects), *failed]


def _row(each: Subject, asked: argparse.Namespace) -> dict[str, Any]:
    """The medians and all samples of a subject's counted steps, and the losses of all steps."""
    counted = each.taken[WARM_UP:]
    samples = {name: [taken[name] for taken in counted] for name in ("seconds", *PARTS)}
    seconds = statistics.median(samples["seconds"])
    peak = None if counted[0]["peak"] is None else each.state_bytes + max(taken["peak"] for taken in counted)
    return {
        "subject": each.name,
        "status": "ok",
        "steps": len(counted),
        "seconds": seconds,
        "low_seconds": min(samples["seconds"]),
        "high_seconds": max(samples["seconds"]),
        **{f"{name}_seconds": statistics.median(samples[name]) for name in PARTS},
        "tokens_per_second": asked.seqlen / seconds,
        "peak_bytes": peak,
        "state_bytes": each.state_bytes,
        "compilations": sum(taken["compilations"] for taken in counted),
        "losses": [taken["loss"] for taken in each.taken],
        "samples": samples,
    }


def loss_difference(rows: Sequence[dict[str, Any]]) -> float:
    """The largest relative difference between two subjects' losses of one step. A loss that is NaN gives NaN."""
    steps = list(zip(*(row["losses"] for row in rows if row["status"] == "ok"), strict=True))
    if any(loss != loss for losses in steps for loss in losses):
        return float("nan")
    return max((max(losses) / min(losses) - 1 for losses in steps), default=0.0)


def line(row: dict[str, Any]) -> str:
    """A row of the printed table."""
    if row["status"] != "ok":
        return f"{row['subject']:16}{row['status']}: {row['message']}"
    parts = "".join(f"{row[f'{name}_seconds'] * 1e3:>11.2f}" for name in PARTS)
    spread = f"{row['low_seconds'] * 1e3:.2f}–{row['high_seconds'] * 1e3:.2f}"
    memory = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.1f}"
    tail = f"{row['tokens_per_second']:>11.0f}{memory:>8}{row['compilations']:>10}{row['losses'][-1]:>9.4f}"
    return f"{row['subject']:16}{row['seconds'] * 1e3:>11.2f}{spread:>20}{parts}{tail}"


def arguments() -> argparse.Namespace:
    """The options. `--small` replaces the defaults of the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = "--small" in sys.argv
    sizes = {"seqlen": (32768, 256), "layers": (8, 2), "width": (4096, 64), "inner": (11008, 128)}
    sizes |= {"head-dim": (128, 16), "vocabulary": (32000, 64), "steps": (10, 3)}
    for name, (large, little) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=little if small else large)
    parser.add_argument("--heads", default="8:2" if small else "64:8", help="query heads and KV heads")
    parser.add_argument("--lengths", default="auto", help="the source of document lengths")
    parser.add_argument("--max-share", type=float, default=0.3 if small else None, help="cuts documents to this share")
    parser.add_argument("--rate", type=float, default=1e-3 if small else 1e-4, help="learning rate")
    parser.add_argument("--subjects", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--backend", default="eager" if small else "inductor", help="backend of torch.compile")
    parser.add_argument("--small", action="store_true", help="a model for a CPU, traced but not compiled")
    parser.add_argument("--out", type=Path, help="JSON file to write the record to")
    return parser.parse_args()


def main() -> None:
    """Measures, prints a table and the losses' difference, and writes the record where asked to."""
    asked, device = arguments(), current_device()
    rows = measure(asked, torch_device(device))
    heads = ("ms a step", "least–most", *PARTS, "tokens/s", "GiB", "compiled", "loss")
    widths = (11, 20, 11, 11, 11, 11, 11, 8, 10, 9)
    print(" " * 16 + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    print("\n".join(map(line, rows)))
    difference = loss_difference(rows)
    alike = difference <= ALIKE
    print(f"losses differ by at most {difference:.2%}; {ALIKE:.0%} are allowed")
    if asked.out:
        last = drawn(WARM_UP + asked.steps - 1, asked)
        chosen = choose(training(last, asked.heads, device, asked.head_dim), registry()).kernel
        settings = {name: value for name, value in vars(asked).items() if name != "out"}
        about = {"settings": settings, "kernel": chosen, "loss_difference": difference, "losses_alike": alike}
        write_rows(asked.out, {"environment": surroundings(registry(), device), **about}, rows)
    if not alike:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
