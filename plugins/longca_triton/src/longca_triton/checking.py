"""Holding kernels against attention by the book in float64, on the CPU, under Triton's interpreter.

Triton decides at import whether it interprets, so such checks run in a process of their own: a distribution's test
calls `run_interpreted` on a file of them. All is in float16: the interpreter has no products of bfloat16, whose bits it
would take for integers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longca.builtin.naive import Naive
from longca.kernels.base import Kernel
from longca.manifests import Device, Problem
from longca.masks import Mask
from longca.parallel.merge import merge

__all__ = [
    "RESULTS",
    "both_ways",
    "check",
    "check_buffers",
    "check_parts",
    "check_strides",
    "compare",
    "cpu_problem",
    "draw_tensors",
    "run_interpreted",
]

#: What `both_ways` returns.
RESULTS = ("out", "lse", "dq", "dk", "dv")

_TOLERANCE = 4e-3  # of the largest value


def run_interpreted(path: Path) -> subprocess.CompletedProcess[str]:
    """Runs a file of tests by pytest, with Triton's kernels interpreted; says how it ended, and what was printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        env={**environment, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def cpu_problem(mask: Mask, heads_q: int, heads_kv: int, head_dim: int = 64, **other: Any) -> Problem:
    """A problem of both directions in float16 on the CPU; `other` are further fields of `Problem`."""
    return Problem(
        mask=mask,
        heads_q=heads_q,
        heads_kv=heads_kv,
        head_dim=head_dim,
        dtype="float16",
        device=Device("cpu"),
        **{"direction": "backward", **other},
    )


def draw_tensors(problem: Problem) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and dout in float16, always the same."""
    random, mask = torch.Generator().manual_seed(0), problem.concrete_mask
    queries = mask.seqlen_q, problem.heads_q, problem.head_dim
    keys = mask.seqlen_k, problem.num_heads_kv, problem.head_dim
    q, k, v, dout = (torch.randn(shape, generator=random).half() for shape in (queries, keys, keys, queries))
    return q, k, v, dout


def both_ways(
    kernel: Kernel, problem: Problem, q: Tensor, k: Tensor, v: Tensor, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out, lse, dq, dk and dv of a forward and its backward."""
    plan = kernel.plan(problem)
    out, lse = kernel.forward(q, k, v, plan)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)


def compare(results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Holds RESULTS against those in float64.

    Raises:
        AssertionError: One of them differs by more than 0.4 % of its largest value, or of 1; the message says which.
    """
    for name, result, value in zip(RESULTS, results, expected, strict=True):
        finite = value.masked_fill(value == -torch.inf, 0.0)
        bound = _TOLERANCE * max(1.0, float(finite.abs().max())) if value.numel() else 0.0
        say = partial("{}: {}".format, name)
        torch.testing.assert_close(result.double(), value, rtol=0.0, atol=bound, msg=say)


def check(
    problem: Problem, kernel: Kernel, tensors: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Holds a kernel against attention by the book; returns RESULTS.

    Args:
        problem: The problem.
        kernel: The kernel.
        tensors: q, k, v and dout; None for what `draw_tensors` draws.

    Raises:
        AssertionError: As `compare` does.
    """
    q, k, v, dout = draw_tensors(problem) if tensors is None else tensors
    results = both_ways(kernel, problem, q, k, v, dout)
    compare(results, both_ways(Naive(), problem, q.double(), k.double(), v.double(), dout.double()))
    return results


def check_parts(problem: Problem, kernel: Kernel, cut: int) -> None:
    """Holds a kernel's two halves of a softmax, merged, against the whole, and their gradients of its out and lse.

    Args:
        problem: The whole.
        kernel: A kernel whose backward is `EXTERNAL`.
        cut: The first key of the second half.

    Raises:
        AssertionError: As `compare` does.
    """
    q, k, v, dout = draw_tensors(problem)
    mask = problem.concrete_mask
    halves = [slice(0, cut), slice(cut, mask.seqlen_k)]
    cuts = [mask.cut([(0, mask.seqlen_q)], [(half.start, half.stop)]) for half in halves]
    plans = [kernel.plan(problem.with_mask(part)) for part in cuts]
    first, second = (kernel.forward(q, k[half], v[half], plan) for half, plan in zip(halves, plans, strict=True))
    out, lse = merge(first, second)
    grads = [
        kernel.backward(dout, q, k[half], v[half], out.to(q.dtype), lse, plan)
        for half, plan in zip(halves, plans, strict=True)
    ]
    dq = grads[0][0].double() + grads[1][0].double()
    dk, dv = (torch.cat([part[n] for part in grads]) for n in (1, 2))
    expected = both_ways(Naive(), problem, q.double(), k.double(), v.double(), dout.double())
    compare((out, lse, dq, dk, dv), expected)


def check_strides(problem: Problem, kernel: Kernel) -> None:
    """Holds a kernel against attention by the book on tensors of several layouts.

    Raises:
        AssertionError: As `compare` does.
    """
    q, k, v, dout = draw_tensors(problem)
    fused = torch.cat([q, k, v], dim=1)  # one projection's output, with q, k and v side by side
    q_part, k_part, v_part = fused.split([x.shape[1] for x in (q, k, v)], dim=1)
    by_head = dout.transpose(0, 1).contiguous().transpose(0, 1)
    check(problem, kernel, (q_part, k_part, v_part, dout))
    check(problem, kernel, (q_part, k_part, v_part, by_head))
    check(problem, kernel, (q, k.mT.contiguous().mT, v, dout[:, :1].expand(-1, problem.heads_q, -1)))


def check_buffers(problem: Problem, kernel: Kernel) -> None:
    """Holds what a kernel writes to buffers of several layouts against what it returns without any: the same bits.

    Raises:
        AssertionError: A buffer is not what was returned, or was not filled.
    """
    q, k, v, dout = draw_tensors(problem)
    expected = both_ways(kernel, problem, q, k, v, dout)
    plan = kernel.plan(problem)
    for layout in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        out, dq, dk, dv = (_poisoned(x, layout) for x in (q, q, k, v))
        lse = _poisoned(expected[1], [1, 0])
        forward = kernel.forward(q, k, v, plan, out=out, lse=lse)
        results = (*forward, *kernel.backward(dout, q, k, v, *forward, plan, dq=dq, dk=dk, dv=dv))
        for name, result, buffer, value in zip(RESULTS, results, (out, lse, dq, dk, dv), expected, strict=True):
            if result is not buffer or not torch.equal(result, value):
                raise AssertionError(f"{name}: a buffer of strides {buffer.stride()} was not filled")


def _poisoned(like: Tensor, layout: list[int]) -> Tensor:
    """NaNs of a tensor's shape, its dimensions in another order in memory."""
    other = like.permute(layout).contiguous()
    return torch.full_like(other, torch.nan).permute([layout.index(n) for n in range(like.dim())])
