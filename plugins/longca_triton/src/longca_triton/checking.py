"""Checks of kernels: against attention by the book in float64 under Triton's interpreter, and on a GPU.

Triton decides at import whether it interprets. So checks under the interpreter run in a process of their own: a
distribution's test calls `interpreted` on a folder of them. They use float16, because the interpreter has no products
of bfloat16. It would take the bits for integers.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Kernel, torch_device, torch_dtype
from longca.kernels.sinks import backward_with_sinks, forward_with_sinks
from longca.manifests import Device, Problem
from longca.masks import Mask
from longca.parallel.merge import merge
from longca_builtin.naive import Naive

__all__ = [
    "RESULTS",
    "both_ways",
    "check",
    "check_buffers",
    "check_far_offsets",
    "check_layouts",
    "check_parts",
    "check_sinks",
    "check_strides",
    "check_unseen",
    "compare",
    "cpu_problem",
    "draw_tensors",
    "interpreted",
    "run_interpreted",
]

#: The names of the results of `both_ways`.
RESULTS = ("out", "lse", "dq", "dk", "dv")

_TOLERANCE = 4e-3  # of the largest value
_FAR = 2**25  # elements from a token to the next: 70 tokens span 4.4 GiB, of which a few pages are ever touched


def interpreted(folder: Path) -> Callable[..., None]:
    """Makes a test that runs each `check_*.py` of a folder under Triton's interpreter.

    Args:
        folder: The folder. pytest does not collect its files itself.
    """
    import pytest

    @pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
    @pytest.mark.parametrize("path", sorted(folder.glob("check_*.py")), ids=lambda path: path.stem)
    def test_interpreted(path: Path) -> None:
        done = run_interpreted(path)
        assert done.returncode == 0, done.stdout

    return test_interpreted


def run_interpreted(path: Path) -> subprocess.CompletedProcess[str]:
    """Runs a file of tests by pytest, with Triton's kernels interpreted. Returns its exit status and its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)],
        env={**environment, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def cpu_problem(mask: Mask, heads_q: int, heads_kv: int, head_dim: int = 64, **other: Any) -> Problem:
    """A problem of both directions in float16 on the CPU. `other` are further fields of `Problem`."""
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
    """q, k, v and dout in the problem's dtype on its device, the same each time."""
    mask, device = problem.concrete_mask, torch_device(problem.device)
    random = torch.Generator(device).manual_seed(0)
    queries = mask.seqlen_q, problem.heads_q, problem.head_dim
    keys = mask.seqlen_k, problem.num_heads_kv, problem.head_dim
    shapes = (queries, keys, keys, queries)
    drawn = (torch.randn(shape, generator=random, device=device) for shape in shapes)
    q, k, v, dout = (x.to(torch_dtype(problem.dtype)) for x in drawn)
    return q, k, v, dout


def both_ways(
    kernel: Kernel, problem: Problem, q: Tensor, k: Tensor, v: Tensor, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out, lse, dq, dk and dv of a forward and its backward."""
    plan = kernel.plan(problem)
    out, lse = kernel.forward(q, k, v, plan)
    return out, lse, *kernel.backward(dout, q, k, v, out, lse, plan)


def compare(results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Compares RESULTS with those in float64.

    Raises:
        AssertionError: A result differs by more than 0.4 % of its largest value, or of 1. The message names it.
    """
    for name, result, value in zip(RESULTS, results, expected, strict=True):
        finite = value.masked_fill(value == -torch.inf, 0.0)
        bound = _TOLERANCE * max(1.0, float(finite.abs().max())) if value.numel() else 0.0
        say = partial("{}: {}".format, name)
        torch.testing.assert_close(result.double(), value, rtol=0.0, atol=bound, msg=say)


def check(
    problem: Problem, kernel: Kernel, tensors: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compares a kernel with attention by the book. Returns RESULTS.

    Args:
        problem: The problem.
        kernel: The kernel.
        tensors: q, k, v and dout. None stands for those of `draw_tensors`.
    """
    q, k, v, dout = draw_tensors(problem) if tensors is None else tensors
    results = both_ways(kernel, problem, q, k, v, dout)
    compare(results, both_ways(Naive(), problem, q.double(), k.double(), v.double(), dout.double()))
    return results


def check_parts(problem: Problem, kernel: Kernel, cut: int) -> None:
    """Compares two halves of a softmax, merged, with the whole, and their gradients of its out and lse.

    The backward of the second half is planned alone, as after the forward of another kernel.

    Args:
        problem: The problem of the whole.
        kernel: A kernel whose backward is `EXTERNAL`.
        cut: The first key of the second half.
    """
    q, k, v, dout = draw_tensors(problem)
    mask = problem.concrete_mask
    halves = [slice(0, cut), slice(cut, mask.seqlen_k)]
    cuts = [mask.cut([(0, mask.seqlen_q)], [(half.start, half.stop)]) for half in halves]
    plans = [kernel.plan(problem.with_mask(part)) for part in cuts]
    first, second = (kernel.forward(q, k[half], v[half], plan) for half, plan in zip(halves, plans, strict=True))
    out, lse = merge(first, second)
    plans[1] = kernel.plan(replace(plans[1].problem, composed=True, backward_only=True))
    grads = [
        kernel.backward(dout, q, k[half], v[half], out.to(q.dtype), lse, plan)
        for half, plan in zip(halves, plans, strict=True)
    ]
    dq = grads[0][0].double() + grads[1][0].double()
    dk, dv = (torch.cat([part[n] for part in grads]) for n in (1, 2))
    expected = both_ways(Naive(), problem, q.double(), k.double(), v.double(), dout.double())
    compare((out, lse, dq, dk, dv), expected)


def check_sinks(problem: Problem, kernel: Kernel) -> None:
    """Compares a kernel that gets sinks with attention by the book that gets them, and the gradients of both."""
    tensors = draw_tensors(problem)
    sinks = torch.linspace(-2, 3, problem.heads_q, dtype=torch.float64)

    def results(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        plan, logits = kernel.plan(problem), sinks.to(q.dtype)
        out, lse = forward_with_sinks(kernel, q, k, v, logits, plan)
        return out, lse, *backward_with_sinks(kernel, dout, q, k, v, out, lse, logits, plan)

    *found, dsinks = results(kernel, *tensors)
    *expected, wanted = results(Naive(), *(x.double() for x in tensors))
    compare(found, expected)
    torch.testing.assert_close(dsinks.double(), wanted, rtol=_TOLERANCE, atol=_TOLERANCE)


def check_strides(problem: Problem, kernel: Kernel) -> None:
    """Compares a kernel with attention by the book on tensors of several layouts."""
    q, k, v, dout = draw_tensors(problem)
    fused = torch.cat([q, k, v], dim=1)  # one projection's output, with q, k and v side by side
    q_part, k_part, v_part = fused.split([x.shape[1] for x in (q, k, v)], dim=1)
    by_head = dout.transpose(0, 1).contiguous().transpose(0, 1)
    check(problem, kernel, (q_part, k_part, v_part, dout))
    check(problem, kernel, (q_part, k_part, v_part, by_head))
    check(problem, kernel, (q, k.mT.contiguous().mT, v, dout[:, :1].expand(-1, problem.heads_q, -1)))


def check_buffers(problem: Problem, kernel: Kernel) -> None:
    """Checks that a kernel writes to buffers of several layouts the bits that it returns without buffers.

    Raises:
        AssertionError: A buffer was not returned, or was not filled.
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


def check_unseen(results: Sequence[Tensor], visible: Tensor) -> None:
    """Checks the results of queries that see nothing, and of keys that no query sees.

    Args:
        results: RESULTS.
        visible: The mask: bool [mask heads, Tq, Tk]. It has such queries and such keys.

    Raises:
        AssertionError: A number is not 0, or a log-sum-exp is not −∞.
    """
    out, lse, dq, dk, dv = results
    blind = ~visible.any(2).repeat_interleave(lse.shape[0] // len(visible), 0)
    alone = ~visible.unflatten(0, (-1, max(1, len(visible) // dk.shape[1]))).any(1).any(1)
    alone = alone.repeat_interleave(dk.shape[1] // len(alone), 0)
    assert blind.any()
    assert alone.any()
    assert (lse[blind] == -torch.inf).all()
    for x, rows in ((out, blind), (dq, blind), (dk, alone), (dv, alone)):
        assert (x.transpose(0, 1)[rows] == 0).all()


def check_far_offsets(problem: Problem, kernel: Kernel) -> None:
    """Compares a kernel with attention by the book on q, k, dq and dk whose tokens lie far apart.

    Args:
        problem: A problem of at least 65 tokens, whose last offset does not fit in 32 bits.
        kernel: The kernel.
    """
    tensors = draw_tensors(problem)
    q, k, dq, dk = (_far_apart(x) for x in (*tensors[:2], *tensors[:2]))
    v, dout = tensors[2:]
    plan = kernel.plan(problem)
    out, lse = kernel.forward(q, k, v, plan)
    grads = kernel.backward(dout, q, k, v, out, lse, plan, dq=dq, dk=dk)
    compare((out, lse, *grads), both_ways(Naive(), problem, *(x.double() for x in tensors)))


def check_layouts(problem: Problem, kernel: Kernel) -> None:
    """Compares a kernel with itself on tensors of other layouts: one projection's output, and heads first.

    Raises:
        AssertionError: The results differ by more than 2 %.
    """
    q, k, v, dout = draw_tensors(problem)
    expected = both_ways(kernel, problem, q, k, v, dout)
    fused = torch.cat([q, k, v], dim=1).split([x.shape[1] for x in (q, k, v)], dim=1)
    by_head = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v, dout))
    for tensors in ((*fused, dout), by_head):
        q, k, v, dout = tensors
        for result, value in zip(both_ways(kernel, problem, q, k, v, dout), expected, strict=True):
            torch.testing.assert_close(result, value, rtol=2e-2, atol=2e-2)


def _far_apart(x: Tensor) -> Tensor:
    """A copy of a tensor [tokens, heads, head_dim] whose tokens lie far apart."""
    wide = torch.empty(len(x) * _FAR, dtype=x.dtype).view(len(x), _FAR)
    return wide[:, : x.shape[1] * x.shape[2]].view(x.shape).copy_(x)


def _poisoned(like: Tensor, layout: list[int]) -> Tensor:
    """NaNs of a tensor's shape. Its dimensions have another order in memory."""
    other = like.permute(layout).contiguous()
    return torch.full_like(other, torch.nan).permute([layout.index(n) for n in range(like.dim())])
