"""Timing configurations of a kernel's three launches on the GPU at hand, each launch by itself.

A distribution's tuning script adds its masks and the configurations to try. The numbers are TFLOP/s of the visible
pairs: 4, 8 and 6 operations a pair and head dimension for the forward, for dk and dv, and for dq. A note says which
configurations do not compile, do not fit, or give another result than the configuration in use.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from longca.kernels.base import device_of, torch_device, torch_dtype
from longca.manifests import Direction, Problem
from longca.masks import Mask
from longca_triton.config import Config, Configs
from longca_triton.kernel import FlashKernel

__all__ = ["OPERATIONS", "Inputs", "Result", "parse_config", "problem_here", "tune", "tuning_parser"]

#: Operations a visible pair and head dimension, by launch.
OPERATIONS = {"forward": 4, "dkdv": 8, "dq": 6}

_TOLERANCE = 0.02  # of the largest value: between configurations only the order of sums differs

#: A kernel's class: from configurations, or None for those in use, to the kernel.
Maker = Callable[[Configs | None], FlashKernel[Any]]


@dataclass
class Result:
    """The result of one configuration of a launch under one mask.

    Attributes:
        kernel: `forward`, `dkdv` or `dq`.
        config: The configuration.
        mask: The mask's name.
        tflops: TFLOP/s, or NaN without a measurement.
        time_ms: Median milliseconds, or NaN without a measurement.
        note: The problem with the configuration, or an empty string.
    """

    kernel: str
    config: Config
    mask: str
    tflops: float = math.nan
    time_ms: float = math.nan
    note: str = ""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Tensors for one problem.

    Attributes:
        maker: The kernel's class.
        problem: The problem.
        in_use: The distribution's configurations for the problem.
        tensors: q, k, v, out, dout and lse. The configurations in use gave out and lse.
    """

    maker: Maker
    problem: Problem
    in_use: Configs
    tensors: tuple[Tensor, ...]

    @staticmethod
    def make(maker: Maker, problem: Problem) -> Inputs:
        """Random tensors on the problem's device, and the out and lse that belong to them."""
        torch.manual_seed(0)
        mask, device, dtype = problem.concrete_mask, torch_device(problem.device), torch_dtype(problem.dtype)
        shape_q = mask.seqlen_q, problem.heads_q, problem.head_dim
        shape_k = mask.seqlen_k, problem.num_heads_kv, problem.head_dim
        q, dout = (torch.randn(shape_q, dtype=dtype, device=device) for _ in "qo")
        k, v = (torch.randn(shape_k, dtype=dtype, device=device) for _ in "kv")
        kernel = maker(None)
        plan = kernel.plan(problem)
        out, lse = kernel.forward(q, k, v, plan)
        return Inputs(maker, problem, plan.configs, (q, k, v, out, dout, lse))

    def case(self, kernel: str, config: Config) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """One launch under one configuration: a function that runs it, and the results that it writes."""
        made = self.maker(replace(self.in_use, **{kernel: config}))
        launches, plan = made.launches, made.plan(self.problem)
        q, k, v, out, dout, lse = self.tensors
        if kernel == "forward":
            written, sums = torch.empty_like(q), torch.empty_like(lse)
            return lambda: launches.launch_attend(q, k, v, written, sums, plan), (written, sums)
        prepared = launches.launch_prepare(dout, out, lse, plan)
        if kernel == "dkdv":
            dk, dv = torch.empty_like(k), torch.empty_like(v)
            return lambda: launches.launch_dkdv(dout, q, k, v, prepared, dk, dv, plan), (dk, dv)
        dq = torch.empty_like(q)
        return lambda: launches.launch_dq(dout, q, k, v, prepared, dq, plan), (dq,)


def median_ms(run: Callable[[], None]) -> float:
    """The median time of a run on a GPU."""
    from triton.testing import do_bench

    return float(do_bench(run, return_mode="median"))


def largest_error(results: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The largest difference as a share of the largest value, or 0 within the tolerance."""
    errors = []
    for result, value in zip(results, expected, strict=True):
        finite = value.isfinite()
        error = (result[finite].float() - value[finite].float()).abs().max() / value[finite].float().abs().max()
        errors.append(float(error))
    return max(errors) if max(errors) > _TOLERANCE else 0.0


def measure(result: Result, inputs: Inputs, expected: dict[str, tuple[Tensor, ...]]) -> None:
    """Times one configuration, and compares it with the first one of its launch."""
    try:
        run, values = inputs.case(result.kernel, result.config)
        for tensor in values:
            tensor.fill_(math.nan)
        result.time_ms = median_ms(run)
    except Exception as error:  # whatever a compiler may raise: it is reported in the table
        result.note = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:100]}"
        return
    if any(tensor.isnan().any() for tensor in values):
        result.note = "NaN"
    elif off := largest_error(values, expected.setdefault(result.kernel, values)):
        result.note = f"differs by {off:.1g} of the largest value"
    result.tflops = OPERATIONS[result.kernel] * inputs.problem.head_dim * inputs.problem.area / result.time_ms * 1e-9


def parse_config(text: str) -> Config:
    """A configuration from `block_m,block_n,num_warps,num_stages,tma`."""
    block_m, block_n, num_warps, num_stages, tma = map(int, text.split(","))
    return Config(block_m, block_n, num_warps, num_stages, bool(tma))


def tuning_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of every tuning script. A script adds arguments for its masks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", choices=tuple(OPERATIONS))
    parser.add_argument(
        "--config", action="append", type=parse_config, help="m,n,warps,stages,tma; instead of the script's own"
    )
    parser.add_argument("--seqlen", type=int, default=2**15)
    parser.add_argument("--heads", type=int, nargs=2, default=(64, 8), metavar=("Q", "KV"))
    parser.add_argument("--head-dim", type=int, default=128, choices=(64, 128, 256))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--out", type=Path, help="CSV file to write")
    return parser


def problem_here(arguments: argparse.Namespace, mask: Mask) -> Problem:
    """The problem that a script's arguments ask for, on the GPU at hand."""
    torch.cuda.init()
    return Problem(
        mask=mask,
        heads_q=arguments.heads[0],
        heads_kv=arguments.heads[1],
        head_dim=arguments.head_dim,
        dtype=arguments.dtype,
        device=device_of(torch.empty(0, device="cuda")),
        direction=Direction.BACKWARD,
    )


def tune(
    maker: Maker,
    candidates: Mapping[str, Sequence[Config]],
    problems: Mapping[str, Problem],
    arguments: argparse.Namespace,
    say: Callable[[str], None] = print,
) -> list[Result]:
    """Compiles and measures configurations, prints a table of them, and writes the file of `--out`.

    Args:
        maker: The kernel's class.
        candidates: Configurations to try, by launch, beside the one in use. `--config` replaces them.
        problems: Problems to measure, by mask name. They differ in their masks alone.
        arguments: The arguments of `tuning_parser`, and the script's own.
        say: A function that takes the table.

    Returns:
        The results, mask by mask. Each launch begins with the configuration in use for the first problem.
    """
    in_use = maker(None).plan(next(iter(problems.values()))).configs
    found = []
    for name, problem in problems.items():
        inputs, expected = Inputs.make(maker, problem), dict[str, tuple[Tensor, ...]]()
        for kernel in arguments.kernel or candidates:
            tried = [getattr(in_use, kernel), *(arguments.config or candidates[kernel])]
            for config in dict.fromkeys(tried):  # the one in use comes first: the others are held against it
                found.append(Result(kernel, config, name))
                measure(found[-1], inputs, expected)
    rows = pd.DataFrame([{**asdict(each.config), **asdict(each), "config": None} for each in found])
    rows = rows.drop(columns="config").sort_values(["kernel", "mask", "tflops"], ascending=[True, True, False])
    say(rows.to_string(index=False))
    if arguments.out:
        rows.to_csv(arguments.out, index=False)
    return found
