"""Times configurations of the three kernels on the GPU at hand, each kernel by itself.

    python tune.py --out tuned.json
    python tune.py --kernel dkdv --head-dim 64 --mask causal --seqlen 16384

A configuration's numbers are TFLOP/s of what its kernel computes of the visible pairs: 4, 8 and 6 operations a pair and
head dimension for the forward, dk and dv, and dq. What does not compile, does not fit or gives another result than the
first configuration is named below the table. Compiling dominates, so it is done for all in threads, on short inputs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from longca import Device, Problem, masks
from longca.kernels.base import device_of
from longca_flashmask.configs import Config, Configs, choose
from longca_flashmask.launches import launch_attend, launch_dkdv, launch_dq, launch_prepare
from longca_flashmask.plan import FlashMaskPlan, make_plan

CANDIDATES = {
    "forward": [
        *[Config(128, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(128, 64, 8, stages, True) for stages in (2, 3, 4)],
        *[Config(128, 64, 4, stages, True) for stages in (2, 3)],
        *[Config(128, 32, 4, stages, True) for stages in (2, 3, 4)],
        *[Config(256, 64, 8, stages, True) for stages in (2, 3)],
        Config(64, 128, 4, 2, True),
        *[Config(64, 64, 4, stages, True) for stages in (2, 3)],
        Config(128, 128, 8, 2),
        Config(128, 64, 4, 2),
    ],
    "dkdv": [
        *[Config(64, 128, 8, stages, True) for stages in (1, 2, 3)],
        *[Config(64, 64, 4, stages, True) for stages in (1, 2, 3)],
        *[Config(32, 128, 8, stages, True) for stages in (2, 3)],
        *[Config(32, 64, 4, stages, True) for stages in (2, 3)],
        Config(128, 64, 8, 2, True),
        Config(64, 64, 8, 2, True),
        Config(128, 128, 8, 2, True),
        Config(64, 128, 8, 2),
        Config(64, 64, 4, 2),
    ],
    "dq": [
        *[Config(128, 64, 8, stages, True) for stages in (2, 3)],
        Config(128, 128, 8, 2, True),
        *[Config(128, 32, 8, stages, True) for stages in (3, 4)],
        Config(128, 32, 4, 2, True),
        *[Config(64, 64, 4, stages, True) for stages in (2, 3)],
        *[Config(64, 32, 4, stages, True) for stages in (3, 4)],
        Config(64, 128, 4, 2, True),
        Config(256, 32, 8, 2, True),
        Config(128, 64, 8, 2),
        Config(64, 64, 4, 2),
    ],
}
OPERATIONS = {"forward": 4, "dkdv": 8, "dq": 6}
MASKS = ("full", "causal", "causal_document", "shared_question", "global_sliding_window")
TOLERANCE = 0.02  # of the largest value: between configurations only the order of sums differs


def build(name: str, seqlen: int) -> masks.Mask:
    """A mask by name, with documents of 3000 tokens and windows of 1024, or what is left of them."""
    documents = [min(3000, seqlen - start) for start in range(0, seqlen, 3000)]
    factors = {
        "causal_document": {"documents": documents},
        "shared_question": {"documents": documents},
        "global_sliding_window": {"window": min(1024, seqlen // 4), "global_tokens": min(1024, seqlen // 4)},
    }
    return masks.build(name, seqlen=seqlen, **factors.get(name, {}))


@dataclass
class Case:
    """Inputs, a plan and outputs for one kernel under one configuration and mask."""

    kernel: str
    plan: FlashMaskPlan
    tensors: tuple[Tensor, ...]
    prepared: Tensor
    results: tuple[Tensor, ...]

    @staticmethod
    def make(kernel: str, config: Config, problem: Problem, tensors: tuple[Tensor, ...]) -> Case:
        """A case on some tensors (q, k, v, out, dout, lse)."""
        others = choose(problem.head_dim, problem.device.capability or (0, 0))
        plan = make_plan(problem, replace(others, **{kernel: config}))
        q, k, v, out, dout, lse = tensors
        made = {
            "forward": lambda: (torch.empty_like(q), torch.empty_like(lse)),
            "dkdv": lambda: (torch.empty_like(k), torch.empty_like(v)),
            "dq": lambda: (torch.empty_like(q),),
        }
        prepared = lse if kernel == "forward" else launch_prepare(dout, out, lse, plan)
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
    tflops: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def mean(self) -> float:
        """The geometric mean over the masks."""
        return statistics.geometric_mean(self.tflops.values()) if self.tflops else 0.0


def make_tensors(problem: Problem) -> tuple[Tensor, ...]:
    """Random q, k, v and dout, and the out and lse that belong to them by the configurations in `configs.py`."""
    torch.manual_seed(0)
    mask, device = problem.concrete_mask, torch.device("cuda")
    dtype = getattr(torch, problem.dtype)
    q, dout = (torch.randn(mask.seqlen_q, problem.heads_q, problem.head_dim, dtype=dtype, device=device) for _ in "qo")
    k, v = (
        torch.randn(mask.seqlen_k, problem.num_heads_kv, problem.head_dim, dtype=dtype, device=device) for _ in "kv"
    )
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], q.shape[0], device=device)
    plan = make_plan(problem, choose(problem.head_dim, problem.device.capability or (0, 0)))
    launch_attend(q, k, v, out, lse, plan)
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
    """Compiles every candidate for one and for two intervals, which is what the masks have; notes those that fail."""
    short = [replace(problem, mask=build(name, 512)) for name in ("causal", "global_sliding_window")]
    inputs = [(each, make_tensors(each)) for each in short]

    def attempt(result: Result) -> None:
        torch.cuda.set_device(0)
        try:
            for each, tensors in inputs:
                Case.make(result.kernel, result.config, each, tensors).run()
            torch.cuda.synchronize()
        except Exception as error:  # whatever a compiler may raise: it is reported in the table
            result.note = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:100]}"

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(attempt, found))


def measure_all(found: list[Result], problem: Problem, name: str) -> None:
    """Times every candidate that compiled under one mask, and holds it against the first."""
    asked = replace(problem, mask=build(name, problem.concrete_mask.seqlen_q))
    tensors = make_tensors(asked)
    expected: dict[str, tuple[Tensor, ...]] = {}
    for result in found:
        if result.note:
            continue
        case = Case.make(result.kernel, result.config, asked, tensors)
        for tensor in case.results:
            tensor.fill_(math.nan)
        time_ms = median_ms(case.run)
        if any(tensor.isnan().any() for tensor in case.results):
            result.note = f"{name}: NaN"
        elif error := largest_error(case.results, expected.setdefault(result.kernel, case.results)):
            result.note = f"{name}: differs by {error:.1g} of the largest value"
        operations = OPERATIONS[result.kernel] * problem.head_dim * asked.area
        result.tflops[name] = operations / time_ms * 1e-9


def show(found: list[Result], names: list[str]) -> None:
    """Prints one table a kernel, best first, and the notes below."""
    for kernel in dict.fromkeys(result.kernel for result in found):
        mine = sorted((r for r in found if r.kernel == kernel), key=lambda r: (bool(r.note), -r.mean))
        print(f"\n{kernel:10}  m    n  warps stages tma    mean " + " ".join(f"{name[:15]:>15}" for name in names))
        for r in mine:
            if r.tflops:
                c = r.config
                cells = " ".join(f"{r.tflops.get(name, math.nan):15.0f}" for name in names)
                line = f"{c.block_m:13} {c.block_n:4} {c.num_warps:5} {c.num_stages:6} {c.tma!s:>5} {r.mean:6.0f} "
                print(line + cells)
        for r in mine:
            if r.note:
                shape = (r.config.block_m, r.config.block_n, r.config.num_warps, r.config.num_stages, r.config.tma)
                print(f"  {shape}: {r.note}")


def main() -> None:
    """Reads the arguments, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=tuple(CANDIDATES))
    parser.add_argument("--mask", action="append", choices=MASKS)
    parser.add_argument("--seqlen", type=int, default=2**15)
    parser.add_argument("--heads", type=int, nargs=2, default=(64, 8), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=128, choices=(64, 128, 256))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=8, help="that compile; 1 if compiling in threads fails")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()

    torch.cuda.init()
    device: Device = device_of(torch.empty(0, device="cuda"))
    names = arguments.mask or list(MASKS)
    problem = Problem(
        mask=masks.build("full", seqlen=arguments.seqlen),
        heads_q=arguments.heads[0],
        heads_kv=arguments.heads[1],
        head_dim=arguments.head_dim,
        dtype=arguments.dtype,
        device=device,
        direction="backward",
    )
    defaults: Configs = choose(problem.head_dim, device.capability or (0, 0))
    found = [
        Result(kernel, config)
        for kernel in arguments.kernel or CANDIDATES
        # The one in use comes first: the others are held against it.
        for config in dict.fromkeys([getattr(defaults, kernel), *CANDIDATES[kernel]])
    ]
    start = time.perf_counter()
    compile_all(found, problem, arguments.threads)
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    for name in names:
        measure_all(found, problem, name)
    print(f"measured in {time.perf_counter() - start:.0f} s")
    show(found, names)
    if arguments.out:
        rows = [{**asdict(result), "mean": result.mean} for result in found]
        arguments.out.write_text(json.dumps({"device": str(device), "results": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
