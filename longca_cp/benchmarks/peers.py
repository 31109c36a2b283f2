"""LongCA's context-parallel strategies beside other people's, in one run and by turns, on the GPUs of one host.

    torchrun --standalone --nproc-per-node 4 longca_cp/benchmarks/peers.py --seqlens 32768 131072
        --out results/h200/distributed/peers.json

The peers (`peer_packages`) are yunchang, ring-flash-attn, Axolotl's ringmaster and PyTorch's own context parallelism:

    pip install --no-deps yunchang ring-flash-attn axolotl-ringmaster

A peer that is not installed is recorded as `unavailable`. All but PyTorch's compute by the package flash_attn.

All subjects get the same seeded tensors for each length and mask. `alone` is the kernel on one GPU with one rank's
share of the heads, while the others wait: the best that a strategy could reach. Each other subject is first compared
with the kernel without a strategy, by the relative Frobenius error of its output and of every gradient. A subject with
an error above 2 % is `wrong` and is not timed. Then all take turns (`peer_turns`), forward and backward apart, through
autograd. A sample is the time on the slowest rank.

A machine without GPUs can try LongCA's strategies on the CPU, with gloo. Peers compute on GPUs alone:

    torchrun --standalone --nproc-per-node 4 longca_cp/benchmarks/peers.py --device cpu --seqlens 512 --heads 8:4
        --head-dim 64
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from peer_packages import PEERS
from peer_subjects import LIMIT, Case, Expected, Ranks, Subject, alone, ours
from peer_turns import DIRECTIONS, ROUNDS, Turns, take_turns

from longca import Transport, masks, registry
from longca.kernels.base import device_of, torch_dtype
from longca.manifests import Direction, Problem, installed_version
from longca.manifests.devices import cpu_device
from longca_bench.measuring.environment import surroundings
from longca_bench.verification.inputs import Inputs

DTYPE: Literal["bfloat16"] = "bfloat16"  # some peers round gradients to it, whatever the inputs are


@dataclass
class Entry:
    """The result of one subject on one case."""

    about: dict[str, Any]  # the record's fields for both directions
    status: str = "ok"  # or `wrong`, `error` or `unavailable`
    message: str = ""
    errors: dict[str, float | None] | None = None  # relative, of each tensor
    turns: Turns | None = None  # None if it is not timed

    def fail(self, status: str, message: str) -> Entry:
        """The same, failed."""
        self.status, self.message, self.turns = status, message, None
        return self

    def rows(self, case: Case, best: Turns | None) -> Iterator[dict[str, Any]]:
        """The record's rows, one for each direction, beside the times of `alone`."""
        flops = {"forward": case.problem.flops * 2 / 5, "backward": case.problem.flops}  # its direction is backward
        for direction in DIRECTIONS:
            row = {
                "seqlen": case.problem.concrete_mask.seqlen_q,
                "mask": case.pattern,
                "direction": direction,
                **self.about,
                "status": self.status,
                "message": self.message,
                "error": self.errors,
            }
            if self.turns is not None:
                seconds = self.turns.median(direction)
                row |= {
                    "milliseconds": seconds * 1e3,
                    "samples": [sample * 1e3 for sample in self.turns.samples(direction)],
                    "turns": len(self.turns.taken[direction]),
                    "tflops": flops[direction] / case.ranks.size / seconds / 1e12,
                    "of_alone": best.median(direction) / seconds if best is not None else None,
                    "peak_bytes": self.turns.peaks[direction] or None,
                }
            yield row


def measure(case: Case, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Prepares, checks and then times all subjects on one case. Returns the record's rows."""
    expected = Expected(case)
    limit = alone(case)
    entries = [Entry({"name": "alone", "kind": "alone"}, turns=Turns(limit, case.ranks))] if limit else []
    entries += [
        _checked(_name(name, transport), "ours", None, partial(ours, name, transport=transport), case, expected)
        for name in asked.strategies
        for transport in asked.transports
    ]
    for peer in (PEERS[name] for name in asked.peers):
        if (reason := peer.unavailable(case.ranks)) is not None:
            about = {"name": peer.name, "kind": "peer", "peer_of": peer.peer_of}
            entries.append(Entry(about).fail("unavailable", reason))
        else:
            entries.append(_checked(peer.name, "peer", peer.peer_of, peer.ready, case, expected))
    take_turns([entry.turns for entry in entries if entry.turns is not None], asked.seconds)
    for entry in entries:
        if entry.turns is not None and entry.turns.failure is not None:
            entry.fail("error", entry.turns.failure)
    best = entries[0].turns if limit else None
    return [row for entry in entries for row in entry.rows(case, best)]


def _name(strategy: str, transport: str) -> str:
    return strategy if transport == "auto" else f"{strategy} by {transport}"


def _checked(
    name: str, kind: str, peer_of: str | None, prepare: Callable[[Case], Subject], case: Case, expected: Expected
) -> Entry:
    """A subject made ready and held against the kernel alone."""
    ranks, entry = case.ranks, Entry({"name": name, "kind": kind, "peer_of": peer_of})
    subject, failure = ranks.attempt(partial(prepare, case))
    if subject is None:
        return entry.fail("error", str(failure))
    entry.about |= subject.about
    results, failure = ranks.attempt(subject.results)
    if results is None:
        return entry.fail("error", str(failure))
    errors, failure = ranks.attempt(partial(expected.errors, subject, results))
    if errors is None:
        return entry.fail("wrong", str(failure))
    entry.errors = {tensor: error if math.isfinite(error) else None for tensor, error in errors.items()}
    if not all(error < LIMIT for error in errors.values()):
        return entry.fail("wrong", f"relative errors {errors}; below {LIMIT} is right")
    entry.turns = Turns(subject, ranks)
    return entry


def draw(seqlen: int, asked: argparse.Namespace, ranks: Ranks) -> Inputs:
    """Standard normal tensors of all tokens, the first rank's on every rank."""
    generator = torch.Generator(ranks.device).manual_seed(asked.seed)

    def normal(heads: int) -> torch.Tensor:
        shape = seqlen, heads, asked.head_dim
        x = torch.randn(shape, dtype=torch_dtype(DTYPE), device=ranks.device, generator=generator)
        dist.broadcast(x, src=0)
        return x

    heads_q, heads_kv = asked.heads
    return Inputs(*(normal(heads) for heads in (heads_q, heads_kv, heads_kv, heads_q)))


def case_of(pattern: str, seqlen: int, inputs: Inputs, asked: argparse.Namespace, ranks: Ranks) -> Case:
    """A length and a mask as a case."""
    mask, device = masks.build(pattern, seqlen=seqlen), device_of(inputs.q)
    heads_q, heads_kv = asked.heads
    sizes: dict[str, Any] = {"heads_q": heads_q, "heads_kv": heads_kv, "head_dim": asked.head_dim}
    problem = Problem(mask=mask, dtype=DTYPE, device=device, direction=Direction.BACKWARD, **sizes)
    return Case(problem, pattern, inputs, asked.kernel, ranks)


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the measurements, forward and backward side by side."""
    head = f"{'':24}{'peer of':18}" + "".join(
        f"{each + ', ms':>15}{'TFLOP/s':>9}{'of alone':>10}" for each in DIRECTIONS
    )
    shown = None
    for forward, backward in zip(rows[::2], rows[1::2], strict=True):
        if (about := (forward["seqlen"], forward["mask"])) != shown:
            shown = about
            print(f"\n{forward['mask']}, {forward['seqlen']} tokens\n{head}")
        text = f"{forward['name']:24}{forward.get('peer_of') or '':18}"
        if forward["status"] != "ok":
            print(f"{text}  {forward['status']}: {forward['message']}")
            continue
        for row in (forward, backward):
            of_alone = "" if row["of_alone"] is None else f"{row['of_alone']:.3f}"
            text += f"{row['milliseconds']:>15.2f}{row['tflops']:>9.1f}{of_alone:>10}"
        print(text)


def _heads(text: str) -> tuple[int, int]:
    heads_q, heads_kv = map(int, text.split(":"))
    return heads_q, heads_kv


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2**15, 2**17], help="tokens in all")
    parser.add_argument("--masks", nargs="+", default=["full", "causal"], choices=["full", "causal"])
    parser.add_argument("--heads", type=_heads, default=(64, 8), help="query heads and KV heads, as 64:8")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--strategies", nargs="*", default=list(registry().strategies))
    parser.add_argument("--transports", nargs="+", default=["auto"], choices=list(Transport), help="of the strategies")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--seconds", type=float, default=0.45, help="of samples for each direction of a subject, about")
    parser.add_argument("--device", default=kind, choices=["cpu", "cuda"])
    parser.add_argument("--kernel", help="of LongCA; fa3 on GPUs and naive on CPUs, where nothing else is said")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file to write the record to, after each length and mask")
    asked = parser.parse_args()
    asked.kernel = asked.kernel or ("fa3" if asked.device == "cuda" else "naive")
    return asked


def _about(asked: argparse.Namespace, ranks: Ranks, problem: Problem) -> dict[str, Any]:
    """The record's head."""
    settings = {name: getattr(asked, name) for name in ("heads", "head_dim", "kernel", "seconds", "seed")}
    names = sorted({peer.distribution for peer in PEERS.values()} | {"xformers", "flash-attn-3", "nvidia-nccl-cu13"})
    device = cpu_device() if asked.device == "cpu" else problem.device
    return {
        "environment": surroundings(registry(), device),
        "settings": {**settings, "dtype": DTYPE, "world_size": ranks.size, "rounds": ROUNDS, "limit": LIMIT},
        "versions": {name: installed_version(name) for name in names},
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if asked.device == "cuda" else None,
        "flash_attn": installed_version("flash-attn"),
    }


def main() -> None:
    """Measures, prints a table, and writes the record where asked to."""
    asked, start = _asked(), time.perf_counter()
    ranks = Ranks(asked.device)
    rows: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    for seqlen in asked.seqlens:
        inputs = draw(seqlen, asked, ranks)
        for pattern in asked.masks:
            case = case_of(pattern, seqlen, inputs, asked, ranks)
            head = head or _about(asked, ranks, case.problem)
            rows += measure(case, asked)
            if ranks.rank == 0:
                print(f"{pattern} of {seqlen}: {time.perf_counter() - start:.0f} s", flush=True)
                if asked.out:
                    asked.out.parent.mkdir(parents=True, exist_ok=True)
                    asked.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8")
            if ranks.device.type == "cuda":
                torch.cuda.empty_cache()
    if ranks.rank == 0:
        show(rows)
    # Threads of backends that a failed peer left waiting would abort a process that winds up, or hold it.
    ranks.everyone(None)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
