"""bsa's whole backward with and without stored gradients of scores, by turns, beside a dense kernel's full backward.

    python longca_vsa/benchmarks/backward.py --out results/h200/sparse/tuning/backward.json
    python longca_vsa/benchmarks/backward.py --kept 0.5 --stored 2048,32,1 --stored 2048,32,2 --seqlen 131072
    python longca_vsa/benchmarks/backward.py --variable 128 --heads 64 64

`recomputed` computes scores again for dq. `in use` is the backward of bsa's own choice, where that is another one. A
line `stored MiB,MiB,n` stores gradients of so many MiB in a part, whose queries take so many MiB, with n streams. All
calls of a mask are timed by turns, and TFLOP/s count 10 operations a visible pair and head dimension. The ratio is that
to the dense kernel's backward of a full mask of as many tokens and heads. `error` is the largest difference from the
results of `recomputed`, as a share of the largest value.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from tune import build

from longca import Problem, masks, registry
from longca.kernels.base import torch_device
from longca.manifests import Direction
from longca.manifests.devices import current_device
from longca_bench.measuring.environment import surroundings
from longca_bench.measuring.timing import BUDGET, take_turns, timed_call
from longca_bench.measuring.world import World
from longca_bench.verification.inputs import Inputs, draw_inputs
from longca_triton.config import Configs
from longca_vsa.bsa.configs import FromScores, choose, recomputing
from longca_vsa.bsa.kernel import BlockSparseAttention

DENSE, RECOMPUTED = "dense", "recomputed"
STORED = ("2048,32,1", "2048,32,2", "2048,64,2", "2048,128,2")
#: dq of stored gradients, beside the tile of dk and dv: rows, warps and stages.
DQ = (128, 8, 3)


def candidates(problem: Problem, stored: list[str], dq: tuple[int, int, int]) -> Iterator[tuple[str, Configs]]:
    """The configurations of the backward by their names, that which recomputes scores first."""
    recomputed, in_use = recomputing(problem, problem.device.capability), choose(problem)
    yield RECOMPUTED, recomputed
    if in_use != recomputed:
        yield "in use", in_use
    rows, warps, stages = dq
    columns = recomputed.dkdv.block_n
    for text in stored:
        store, cache, streams = map(int, text.split(","))
        config = FromScores(rows, columns, warps, stages, True, store * 2**20, cache * 2**20, streams)
        yield f"stored {text}", replace(recomputed, dq=config)


def backward(kernel: Any, problem: Problem, x: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    """A kernel's backward with a plan and results of a forward of its own."""
    plan = kernel.plan(problem)
    out, lse = kernel.forward(x.q, x.k, x.v, plan)
    return lambda: kernel.backward(x.dout, x.q, x.k, x.v, out, lse, plan)


def error(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest difference of any result, as a share of its largest value. Infinite if a value is not finite."""
    if not all(x.isfinite().all() for x in found):
        return float("inf")
    shares = ((a.float() - b.float()).abs().max() / b.float().abs().max() for a, b in zip(found, expected, strict=True))
    return max(map(float, shares))


def measure(problem: Problem, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one mask, the dense kernel's first."""
    world, x = World(torch_device(problem.device)), draw_inputs(problem, seed=0)
    full = replace(problem, mask=masks.build("full", seqlen=asked.seqlen))
    calls = {DENSE: backward(registry().load(asked.dense), full, x)}
    configs = dict(candidates(problem, asked.stored, asked.dq))
    calls |= {name: backward(BlockSparseAttention(each), problem, x) for name, each in configs.items()}
    expected = calls[RECOMPUTED]()
    errors = {name: error(calls[name](), expected) for name in configs}
    once = {name: lambda call=call: timed_call(call, world) for name, call in calls.items()}
    times = {name: timing.median for name, timing in take_turns(once, world, asked.budget).items()}
    areas = {name: (full if name == DENSE else problem).area for name in calls}
    rates = {name: 10 * asked.head_dim * areas[name] / times[name] * 1e-12 for name in calls}
    return [
        {
            "backward": name,
            "configs": {k: astuple(getattr(configs[name], k)) for k in ("dkdv", "dq")} if name in configs else None,
            "ms": 1e3 * times[name],
            "tflops": rates[name],
            "ratio": rates[name] / rates[DENSE],
            "error": errors.get(name),
        }
        for name in calls
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The arguments. None stands for those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seqlen", type=int, default=2**15)
    parser.add_argument("--heads", type=int, nargs=2, default=(64, 8), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=128, choices=(64, 128, 256))
    parser.add_argument("--block", type=int, default=64, help="tokens a block")
    parser.add_argument("--variable", type=int, metavar="MEAN", help="blocks of unequal sizes, of so many on average")
    parser.add_argument("--kept", type=float, nargs="+", default=(0.1, 0.5, 0.8))
    parser.add_argument("--mask-heads", default="kv", choices=("shared", "kv", "query"))
    parser.add_argument("--stored", action="append", metavar="STORE,CACHE,STREAMS", help="in MiB, MiB and streams")
    parser.add_argument("--dq", type=int, nargs=3, default=DQ, metavar=("ROWS", "WARPS", "STAGES"))
    parser.add_argument("--dense", default="fa4", help="the kernel of the full mask")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds of samples of each call")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    asked = parser.parse_args(arguments)
    asked.stored = asked.stored or list(STORED)
    return asked


def main() -> None:
    """Measures every share, prints a table, and writes the record where asked to."""
    asked, device, cases = parse(), current_device(), []
    for kept in asked.kept:
        problem = Problem(
            mask=build(argparse.Namespace(**{**vars(asked), "kept": kept}), asked.seqlen),
            heads_q=asked.heads[0],
            heads_kv=asked.heads[1],
            head_dim=asked.head_dim,
            dtype="bfloat16",
            device=device,
            direction=Direction.BACKWARD,
        )
        rows = measure(problem, asked)
        cases.append({"mask": problem.concrete_mask.label, "kept": kept, "rows": rows})
        for row in rows:
            what = f"{row['ms']:9.3f} ms {row['tflops']:6.0f} TFLOP/s {row['ratio']:6.3f}"
            print(f"{kept:4.0%} {row['backward']:20}{what}  error {row['error'] or 0:.1e}", flush=True)
    if asked.out:
        about = {name: str(value) for name, value in vars(asked).items() if name != "out"}
        record = {"environment": surroundings(registry(), device), "asked": about, "cases": cases}
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
