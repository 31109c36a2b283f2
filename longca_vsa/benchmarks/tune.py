"""Times configurations of bsa's three kernels on the GPU at hand, each kernel by itself.

    python tune.py --out tuned.json
    python tune.py --kernel forward --heads 16 16 --block 128 --kept 0.2
    python tune.py --kernel dkdv --variable 128 --seqlen 16384
    python tune.py --kernel dq --config 128,64,4,2,1 --config 128,64,8,2,0

A configuration's numbers are TFLOP/s of what its kernel computes of the visible pairs: 4, 8 and 6 operations a pair and
head dimension for the forward, dk and dv, and dq. What does not compile, does not fit or gives another result than the
configuration in use is named below the table. Compiling dominates, so it is done for all in threads, on short inputs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longca import Problem, masks
from longca.kernels.base import device_of
from longca.masks import BlockSparseMask
from longca_vsa.bsa.configs import Config, Configs, candidates, choose
from longca_vsa.bsa.launches import launch_attend, launch_dkdv, launch_dq, launch_prepare
from longca_vsa.bsa.plan import BSAPlan, make_plan, packed_heads

OPERATIONS = {"forward": 4, "dkdv": 8, "dq": 6}
TOLERANCE = 0.02  # of the largest value: between configurations only the order of sums differs
SHORT = 4  # blocks of the inputs that are compiled on

GRID = {
    "forward": [
        *[Config(128, 64, warps, stages, True) for warps in (4, 8) for stages in (2, 3, 4)],
        *[Config(128, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(128, 32, 4, stages, True) for stages in (3, 4)],
        *[Config(256, 64, 8, stages, True) for stages in (2, 3)],
        *[Config(64, 64, 4, stages, True) for stages in (2, 3, 4)],
        *[Config(64, 128, 4, stages, True) for stages in (2, 3)],
        *[Config(32, 64, warps, 3, True) for warps in (2, 4)],
        *[Config(16, 64, warps, 3, True) for warps in (1, 2, 4)],
        *[Config(128, 64, warps, stages) for warps in (4, 8) for stages in (2, 3)],
        *[Config(64, 64, 4, stages) for stages in (2, 3)],
    ],
    "dkdv": [
        *[Config(64, 64, warps, stages, True) for warps in (4, 8) for stages in (1, 2, 3)],
        *[Config(64, 128, 8, stages, True) for stages in (1, 2, 3)],
        *[Config(32, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(32, 64, 4, stages, True) for stages in (2, 3)],
        *[Config(128, 64, warps, 2, True) for warps in (4, 8)],
        *[Config(64, 32, 4, stages, True) for stages in (2, 3)],
        *[Config(128, 32, 4, stages, True) for stages in (1, 2)],
        *[Config(64, 16, warps, 2, True) for warps in (2, 4)],
        *[Config(64, 64, warps, 2) for warps in (4, 8)],
    ],
    "dq": [
        *[Config(128, 64, 8, stages, True) for stages in (1, 2, 3)],
        *[Config(128, 64, 4, stages, True) for stages in (1, 2)],
        *[Config(128, 32, warps, stages, True) for warps in (4, 8) for stages in (2, 3)],
        Config(128, 128, 8, 2, True),
        *[Config(64, 64, 4, stages, True) for stages in (2, 3, 4)],
        *[Config(64, 32, 4, stages, True) for stages in (3, 4)],
        *[Config(32, 64, warps, 2, True) for warps in (2, 4)],
        *[Config(16, 64, warps, 2, True) for warps in (1, 2, 4)],
        *[Config(128, 64, 8, stages) for stages in (2, 3)],
        Config(64, 64, 4, 2),
    ],
}


@dataclass
class Case:
    """Inputs, a plan and outputs for one kernel under one configuration."""

    kernel: str
    plan: BSAPlan
    tensors: tuple[Tensor, ...]
    prepared: Tensor
    results: tuple[Tensor, ...]

    @staticmethod
    def make(kernel: str, config: Config, problem: Problem, tensors: tuple[Tensor, ...]) -> Case:
        """A case on some tensors (q, k, v, out, dout, lse)."""
        plan = make_plan(problem, replace(in_use(problem), **{kernel: config}))
        q, k, v, out, dout, lse = tensors
        made = {
            "forward": lambda: (torch.empty_like(q), torch.empty_like(lse)),
            "dkdv": lambda: (torch.empty_like(k), torch.empty_like(v)),
            "dq": lambda: (torch.empty_like(q),),
        }
        prepared = lse if kernel == "forward" else launch_prepare(dout, out, lse)
        return Case(kernel, plan, (q, k, v, dout), prepared, made[kernel]())

    def run(self) -> None:
        """Launches the kernel."""
        q, k, v, dout = self.tensors
        if self.kernel == "forward":
            launch_attend(q, k, v, *self.results, self.plan)
        elif self.kernel == "dkdv":
            launch_dkdv(dout, q, k, v, self.prepared, *self.results, self.plan)
        else:
            launch_dq(dout, q, k, v, self.prepared, *self.results, self.plan)


@dataclass
class Result:
    """What was found of one configuration."""

    kernel: str
    config: Config
    tflops: float = 0.0
    time_ms: float = math.nan
    note: str = ""


def in_use(problem: Problem) -> Configs:
    """The configurations that `configs.py` has for a problem."""
    mask = problem.concrete_mask
    assert isinstance(mask, BlockSparseMask)
    capability = problem.device.capability or (0, 0)
    return choose(problem.head_dim, capability, mask.q_bounds, packed_heads(problem), mask.k_bounds)


def build(arguments: argparse.Namespace, seqlen: int) -> masks.Mask:
    """The mask that the arguments ask for, over some tokens."""
    heads = {"shared": 1, "kv": arguments.heads[1], "query": arguments.heads[0]}[arguments.mask_heads]
    factors = {"kept": arguments.kept, "heads": heads, "seed": 0}
    if arguments.variable is None:
        return masks.build("uniform_block_sparse", seqlen=seqlen, block=arguments.block, **factors)
    cuts = np.random.default_rng(0).choice(np.arange(1, seqlen), max(1, seqlen // arguments.variable - 1), False)
    bounds = [0, *np.sort(cuts).tolist(), seqlen]
    return masks.build("variable_block_sparse", seqlen=seqlen, boundaries=bounds, **factors)


def make_tensors(problem: Problem) -> tuple[Tensor, ...]:
    """Random q, k, v and dout, and the out and lse that belong to them by the configurations in `configs.py`."""
    torch.manual_seed(0)
    mask, dtype = problem.concrete_mask, getattr(torch, problem.dtype)
    shape_q = mask.seqlen_q, problem.heads_q, problem.head_dim
    shape_k = mask.seqlen_k, problem.num_heads_kv, problem.head_dim
    q, dout = (torch.randn(shape_q, dtype=dtype, device="cuda") for _ in "qo")
    k, v = (torch.randn(shape_k, dtype=dtype, device="cuda") for _ in "kv")
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], q.shape[0], device="cuda")
    launch_attend(q, k, v, out, lse, make_plan(problem))
    return q, k, v, out, dout, lse


def median_ms(run: Callable[[], None], repeats: int = 10, limit_ms: float = 400.0) -> float:
    """The median time of a run, over fewer repeats where they would take longer than a limit."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    run()
    events[0].record()
    run()
    events[1].record()
    torch.cuda.synchronize()
    first = events[0].elapsed_time(events[1])
    repeats = max(3, min(repeats, int(limit_ms / max(first, 1e-3))))
    events[0].record()
    for event in events[1 : repeats + 1]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events[: repeats + 1]))


def largest_error(results: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest difference, as a share of the largest value; 0 where it is within the tolerance."""
    errors = []
    for result, value in zip(results, expected, strict=True):
        finite = value.isfinite()
        error = (result[finite].float() - value[finite].float()).abs().max() / value[finite].float().abs().max()
        errors.append(float(error))
    return max(errors) if max(errors) > TOLERANCE else 0.0


def compile_all(found: list[Result], problem: Problem, threads: int) -> None:
    """Compiles every candidate on short inputs; notes those that fail."""
    tensors = make_tensors(problem)

    def attempt(result: Result) -> None:
        torch.cuda.set_device(0)
        try:
            Case.make(result.kernel, result.config, problem, tensors).run()
            torch.cuda.synchronize()
        except Exception as error:  # whatever a compiler may raise: it is reported in the table
            result.note = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(attempt, found))


def measure_all(found: list[Result], problem: Problem) -> None:
    """Times every candidate that compiled, and holds it against the one in use."""
    tensors = make_tensors(problem)
    expected: dict[str, tuple[Tensor, ...]] = {}
    for result in found:
        if result.note:
            continue
        case = Case.make(result.kernel, result.config, problem, tensors)
        for tensor in case.results:
            tensor.fill_(math.nan)
        result.time_ms = median_ms(case.run)
        if any(tensor.isnan().any() for tensor in case.results):
            result.note = "NaN"
        elif error := largest_error(case.results, expected.setdefault(result.kernel, case.results)):
            result.note = f"differs by {error:.1g} of the largest value"
        result.tflops = OPERATIONS[result.kernel] * problem.head_dim * problem.area / result.time_ms * 1e-9


def show(found: list[Result]) -> None:
    """Prints one table a kernel, best first, and the notes below."""
    for kernel in dict.fromkeys(result.kernel for result in found):
        first = next(result.config for result in found if result.kernel == kernel)
        mine = sorted((r for r in found if r.kernel == kernel), key=lambda r: (bool(r.note), -r.tflops))
        print(f"\n{kernel:10}  m    n  warps stages   tma     ms  TFLOP/s")
        for r in mine:
            c, in_use_mark = r.config, "  in use" if r.config == first else ""
            line = f"{c.block_m:13} {c.block_n:4} {c.num_warps:6} {c.num_stages:6} {c.tma!s:>5} {r.time_ms:6.2f} "
            print(f"{line}{r.tflops:8.0f}{in_use_mark}{'  ' + r.note if r.note else ''}")


def parse_config(text: str) -> Config:
    """A configuration from `block_m,block_n,num_warps,num_stages,tma`."""
    block_m, block_n, num_warps, num_stages, tma = map(int, text.split(","))
    return Config(block_m, block_n, num_warps, num_stages, bool(tma))


def parse() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=tuple(GRID))
    parser.add_argument(
        "--config", action="append", type=parse_config, help="m,n,warps,stages,tma; instead of the grid"
    )
    parser.add_argument("--seqlen", type=int, default=2**15)
    parser.add_argument("--heads", type=int, nargs=2, default=(64, 8), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=128, choices=(64, 128, 256))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--block", type=int, default=64, help="tokens a block")
    parser.add_argument("--variable", type=int, metavar="MEAN", help="blocks of unequal sizes, of so many on average")
    parser.add_argument("--kept", type=float, default=0.5)
    parser.add_argument("--mask-heads", default="kv", choices=("shared", "kv", "query"))
    parser.add_argument("--threads", type=int, default=8, help="that compile; 1 if compiling in threads fails")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


def main() -> None:
    """Reads the arguments, measures and prints."""
    arguments = parse()
    torch.cuda.init()
    device = device_of(torch.empty(0, device="cuda"))
    problem = Problem(
        mask=build(arguments, arguments.seqlen),
        heads_q=arguments.heads[0],
        heads_kv=arguments.heads[1],
        head_dim=arguments.head_dim,
        dtype=arguments.dtype,
        device=device,
        direction="backward",
    )
    defaults, capability = in_use(problem), device.capability or (0, 0)
    found = [
        Result(kernel, config)
        for kernel in arguments.kernel or GRID
        # The one in use comes first: the others are held against it.
        for config in dict.fromkeys(
            [
                getattr(defaults, kernel),
                *(arguments.config or [*candidates(kernel, problem.head_dim, capability), *GRID[kernel]]),
            ]
        )
    ]
    start = time.perf_counter()
    short = replace(problem, mask=build(arguments, SHORT * (arguments.variable or arguments.block)))
    compile_all(found, short, arguments.threads)
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    measure_all(found, problem)
    print(f"measured in {time.perf_counter() - start:.0f} s")
    show(found)
    if arguments.out:
        asked = {name: str(value) for name, value in vars(arguments).items()}
        rows = [asdict(result) for result in found]
        content = {"device": str(device), "asked": asked, "results": rows}
        arguments.out.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
