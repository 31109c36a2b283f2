"""A user's function as a kernel of a run. A worker imports it, and calls it as any kernel.

Autograd gives the gradients. A backward therefore runs the forward again, and its time has both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longca.kernels.base import Plan, fill
from longca.manifests import Problem
from longca.masks import Form
from longca_bench.functions.arguments import Context
from longca_bench.functions.calling import arguments_of, output_of, read_function
from longca_bench.functions.shapes import Shape
from longca_bench.functions.user_function import load
from longca_bench.verification.verify import lse_dtype

__all__ = ["FunctionKernel", "FunctionPlan"]


class FunctionPlan(Plan):
    """A plan for a function.

    Attributes:
        arguments: The values of the parameters after q, k and v.
    """

    arguments: dict[str, Any]


class FunctionKernel:
    """A function of q, k and v, which returns out, or (out, lse). Without a log-sum-exp, its own is NaN.

    Args:
        text: The module and the function.
        shape: The shape of its tensors.
    """

    def __init__(self, text: str, shape: str) -> None:
        self._function = read_function(load(text), text)
        self._shape = Shape(shape)  # type: ignore[call-arg]  # a member by its name

    def plan(self, problem: Problem) -> FunctionPlan:
        """Makes the function's parameters."""
        block_sparse = problem.mask.admits(Form.BLOCK_SPARSE)
        plan = FunctionPlan(problem, Form.BLOCK_SPARSE if block_sparse else Form.ROW_INTERVALS, self._function.name)
        plan.arguments = arguments_of(self._function, Context(problem, 1 if self._shape.is_batched else None))
        return plan

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: FunctionPlan,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The function's output and log-sum-exp. See `Kernel.forward`."""
        with torch.no_grad():
            found = self._called(q, k, v, plan)
        (packed,) = self._shape.packed(output_of(self._function, found, self._laid_out(q), self._shape))
        return fill(out, packed), fill(lse, self._lse(found, q))

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        plan: FunctionPlan,
        *,
        dq: Tensor | None = None,
        dk: Tensor | None = None,
        dv: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the function by autograd, after another forward. See `Kernel.backward`."""
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
            found = self._called(q, k, v, plan)
            result = output_of(self._function, found, self._laid_out(q), self._shape)
            grads = torch.autograd.grad(result, (q, k, v), self._laid_out(dout))
        first, second, third = (fill(buffer, grad) for buffer, grad in zip((dq, dk, dv), grads, strict=True))
        return first, second, third

    def _called(self, q: Tensor, k: Tensor, v: Tensor, plan: FunctionPlan) -> Any:
        return self._function.call(*map(self._laid_out, (q, k, v)), **plan.arguments)

    def _laid_out(self, x: Tensor) -> Tensor:
        """A packed tensor as a view in the function's shape."""
        if not self._shape.is_batched:
            return x
        return x[None].transpose(1, 2) if self._shape is Shape.BHSD else x[None]

    def _lse(self, found: Any, q: Tensor) -> Tensor:
        """The log-sum-exp of a call: [heads, tokens]. NaN if the function gave none."""
        lse = found[1] if isinstance(found, (tuple, list)) and len(found) > 1 else None
        shape = (q.shape[1], q.shape[0])
        if not isinstance(lse, Tensor) or lse.numel() != shape[0] * shape[1] or lse.shape[-2:] != shape:
            return q.new_full(shape, torch.nan, dtype=lse_dtype(q))
        return lse.reshape(shape)
