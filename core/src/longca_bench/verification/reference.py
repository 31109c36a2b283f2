"""References: the right result of a problem, and the error of PyTorch's own arithmetic in the same dtype.

A reference is computed once for a problem and its inputs, and every kernel is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longca.kernels.base import torch_dtype
from longca.manifests import Problem
from longca.parallel.merge import merge
from longca_bench.verification.head_sample import HeadSample, sample_heads
from longca_bench.verification.inputs import Inputs
from longca_bench.verification.sinks import SINK
from longca_bench.verification.spread import BackwardSpread, ForwardSpread
from longca_bench.verification.tokens import by_tokens
from longca_builtin.blockwise import attention_backward, attention_forward

__all__ = [
    "FLOAT64_PAIRS",
    "USUAL_LSE",
    "Reference",
    "Rows",
    "distance",
    "part_reference",
    "reference",
]

#: Visible pairs over all heads above which the reference is computed in float32 instead of float64.
FLOAT64_PAIRS = 2**33
#: Largest lse of standard normal inputs. Their scores reach 8.
USUAL_LSE = 16.0


@dataclass(frozen=True)
class Rows:
    """One tensor of the result, row by row. A row is a token's vector of one head.

    Attributes:
        value: The reference: [T, H, D]. For results of 16 bits it is rounded to float32, which halves its memory.
        spread: The distance that rounding moves each row, in ulps of one: [T, H].
        pytorch: Distance of PyTorch's own arithmetic from the reference: [T, H].
    """

    value: Tensor
    spread: Tensor
    pytorch: Tensor


@dataclass(frozen=True)
class Reference:
    """The reference of one problem on one set of inputs.

    Attributes:
        problem: The problem.
        rows: `out`, and for the direction `backward` also `dq`, `dk` and `dv`. A part has only the gradients.
        lse: [Hq, Tq]. It has only the sampled heads, if heads are sampled, like the rows.
        dtype: The dtype of the reference's arithmetic.
        largest_lse: The largest finite |lse|, or USUAL_LSE if that is larger. Scores with a weight are no larger, so it
            is the size of the exponents s − lse before they cancel.
        merged: The (out, lse) of the whole softmax for its part, for calls of the backward.
        sample: The sampled heads, or None for all heads.
    """

    problem: Problem
    rows: dict[str, Rows]
    lse: Tensor
    dtype: torch.dtype
    largest_lse: float = USUAL_LSE
    merged: tuple[Tensor, Tensor] | None = None
    sample: HeadSample | None = None


def reference(problem: Problem, inputs: Inputs) -> Reference:
    """The reference of a problem: its output, and its gradients if its direction is `backward`.

    A problem above SAMPLED_PAIRS gets a reference of some heads.
    """
    sample = sample_heads(problem)
    if sample is None:
        return _of_all(problem, inputs)
    return replace(_of_all(sample.problem(problem), sample.inputs(inputs)), problem=problem, sample=sample)


def _of_all(problem: Problem, inputs: Inputs) -> Reference:
    mask, scale, softcap = problem.concrete_mask, problem.scale, problem.softcap
    low, high = torch_dtype(problem.dtype), _high(problem)
    q, k, v = inputs.q, inputs.k, inputs.v
    scales = ForwardSpread(inputs)
    part = attention_forward(q, k, v, mask, scale, high, scales.see, softcap=softcap, ample=True)
    out, lse = _with_sinks(problem, part)
    share = torch.where(part[1] == -torch.inf, 0.0, (part[1] - lse).exp()).T  # 1 without sinks
    exact = _kept(out, low), lse
    del out, part
    rounded = exact
    if low is not high:
        part = attention_forward(q, k, v, mask, scale, low, softcap=softcap, ample=True)
        rounded = _with_sinks(problem, part)
    rows = {"out": Rows(exact[0], scales.out * share, distance(rounded[0], exact[0]))}
    if problem.direction == "backward":
        rows.update(_gradients(problem, inputs, exact, rounded))
    return Reference(problem, rows, exact[1], high, _largest(exact[1]))


def _with_sinks(problem: Problem, part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """out and lse of a softmax with the problem's sinks, if it has any, from those of its keys."""
    if not problem.sinks:
        return part
    out, lse = part
    return merge(part, (out.new_zeros(()).expand_as(out), lse.new_full((), SINK).expand_as(lse)))


def part_reference(problem: Problem, inputs: Inputs, other: tuple[Tensor, Tensor]) -> Reference:
    """The reference of the gradients of a part of a larger softmax.

    `other` has out [Tq, Hq, D] and lse [Hq, Tq] over the softmax's other keys.
    """
    mask, scale, softcap = problem.concrete_mask, problem.scale, problem.softcap
    low, high = torch_dtype(problem.dtype), _high(problem)
    q, k, v = inputs.q, inputs.k, inputs.v
    part = attention_forward(q, k, v, mask, scale, high, softcap=softcap)
    exact = merge(part, other)
    rounded = exact if low is high else merge(attention_forward(q, k, v, mask, scale, low, softcap=softcap), other)
    rows = _gradients(problem, inputs, exact, rounded)
    return Reference(problem, rows, part[1], high, _largest(exact[1]), exact)


def _largest(lse: Tensor) -> float:
    return max(USUAL_LSE, float(lse.masked_fill(lse == -torch.inf, 0.0).abs().amax()) if lse.numel() else 0.0)


def _kept(value: Tensor, low: torch.dtype) -> Tensor:
    """A reference as it is kept. Rounding to float32 moves it by far less than an ulp of a dtype of 16 bits."""
    return value.float() if low.itemsize == 2 else value


def _high(problem: Problem) -> torch.dtype:
    return torch.float64 if problem.area <= FLOAT64_PAIRS else torch.float32


def _gradients(
    problem: Problem, inputs: Inputs, exact: tuple[Tensor, Tensor], rounded: tuple[Tensor, Tensor]
) -> dict[str, Rows]:
    """Rows of dq, dk and dv, for the outputs and log-sum-exps of exact and of rounded arithmetic."""
    mask, scale, softcap = problem.concrete_mask, problem.scale, problem.softcap
    tensors = (inputs.dout, inputs.q, inputs.k, inputs.v)
    low, high = torch_dtype(problem.dtype), _high(problem)
    scales = BackwardSpread(inputs, scale, exact[0])
    grads = [
        _kept(x, low)
        for x in attention_backward(*tensors, *exact, mask, scale, high, scales.see, softcap=softcap, ample=True)
    ]
    low_grads: Sequence[Tensor] = grads
    if not (low is high and rounded is exact):
        low_grads = attention_backward(
            *tensors, rounded[0].to(low), rounded[1], mask, scale, low, softcap=softcap, ample=True
        )
    rows = {
        name: Rows(grad, moved, distance(low_grad, grad))
        for (name, moved), grad, low_grad in zip(scales.rows.items(), grads, low_grads, strict=True)
    }
    if problem.sinks:
        value, moved = _of_sinks(inputs.dout, *exact)
        low_value, _ = _of_sinks(inputs.dout, rounded[0].to(low), rounded[1])
        rows["dsinks"] = Rows(value, moved, distance(low_value, value))
    return rows


def _of_sinks(dout: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of sinks as a row for each head, [1, Hq, 1], and its spread [1, Hq], which is no smaller than it."""
    terms, weights = dout.to(lse.dtype) * out, (SINK - lse).exp().T
    value, squares = (terms.sum(-1) * weights).sum(0), (terms.square().sum(-1) * weights.square()).sum(0)
    return -value[None, :, None], (squares + value.square()).sqrt()[None]


def distance(result: Tensor, value: Tensor) -> Tensor:
    """Euclidean distance of each row of a result from its value, in the value's dtype: [T, H]."""
    return by_tokens(lambda mine, right: (mine.to(right.dtype) - right).norm(dim=-1), result, value)
