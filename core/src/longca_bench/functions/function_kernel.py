"""A user's function as a kernel. Autograd gives the gradients, so a backward runs the forward again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from longca.errors import RequestError, VerificationError
from longca.kernels.base import Plan, fill
from longca.manifests import Problem
from longca.masks import Form
from longca_bench.functions.arguments import ARGUMENTS, Context
from longca_bench.functions.ranks import Placement, Ranks, Tokens, tokens_of_ranks
from longca_bench.functions.user_function import UserFunction
from longca_bench.verification.verify import lse_dtype

__all__ = ["FunctionKernel", "FunctionPlan", "Shape"]

_DIMS = {"b": "batch", "t": "tokens", "s": "tokens", "h": "heads", "d": "head dim"}


class Shape(StrEnum):
    """The order of the dims of a function's tensors."""

    THD = "thd"
    BHSD = "bhsd"
    BSHD = "bshd"

    @classmethod
    def named(cls, name: str) -> Shape:
        """The shape of a name, or a RequestError."""
        if name not in tuple(cls):
            raise RequestError(f"the shape is {name!r}; give {', '.join(cls)}")
        return cls(name)

    @property
    def dims(self) -> str:
        """The dims in words."""
        return f"[{', '.join(_DIMS[letter] for letter in self)}]"

    @property
    def is_batched(self) -> bool:
        """Whether there is a dim of sequences."""
        return "b" in self


class FunctionPlan(Plan):
    """A plan for a function: the values of its parameters, and the tokens of each rank. Empty on one device."""

    arguments: dict[str, Any]
    tokens: Tokens


class FunctionKernel:
    """A function of q, k and v, which returns out, or (out, lse). Without a log-sum-exp, its own is NaN.

    If the shape has a dim of sequences, the kernel's own is the last of a batch, and the others' results are dropped.
    Ranks share each sequence, and have their tokens by a placement. None is one device.
    """

    def __init__(
        self,
        function: UserFunction,
        shape: Shape,
        batch: int = 1,
        ranks: Ranks | None = None,
        placement: Placement = "contiguous",
    ) -> None:
        self._function, self._shape = function, shape
        self._batch = batch if shape.is_batched else 1
        self._ranks, self._placement = ranks, placement

    def plan(self, problem: Problem) -> FunctionPlan:
        """Makes the function's parameters."""
        block_sparse, ranks = problem.mask.admits(Form.BLOCK_SPARSE), self._ranks
        plan = FunctionPlan(problem, Form.BLOCK_SPARSE if block_sparse else Form.ROW_INTERVALS, self._function.name)
        plan.tokens = () if ranks is None else tokens_of_ranks(self._placement, problem.concrete_mask, ranks.size)
        own, group = (None, None) if ranks is None else (plan.tokens[ranks.group.rank()], ranks.group)
        context = Context(problem, self._batch if self._shape.is_batched else None, own, group)
        plan.arguments = {name: ARGUMENTS[name](context) for name in self._function.parameters}
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
            result, found_lse = self._called([self._own(x, plan) for x in (q, k, v)], plan)
        if found_lse is None or self._ranks is not None:
            found_lse = q.new_full((q.shape[1], q.shape[0]), torch.nan, dtype=lse_dtype(q))
        return fill(out, self._gathered(self._packed(result), plan)), fill(lse, found_lse)

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
        name = self._function.name
        remedy = "wrap a kernel in a torch.autograd.Function, or take the forward alone: --direction forward"
        with torch.enable_grad():
            own = [self._own(x, plan).detach().requires_grad_() for x in (q, k, v)]
            result, _ = self._called(own, plan)
            if not result.requires_grad:
                raise VerificationError(f"no gradient reaches the output of {name}; {remedy}")
            try:
                grads = torch.autograd.grad(self._packed(result), own, self._own(dout, plan), allow_unused=True)
            except (Exception, SystemExit) as error:
                raise VerificationError(f"the backward of {name} raised {type(error).__name__}: {error}") from error
        if missing := [x for x, grad in zip("qkv", grads, strict=True) if grad is None]:
            raise VerificationError(f"no gradient of {name} reaches {' and '.join(missing)}; {remedy}")
        first, second, third = (
            fill(buffer, self._gathered(grad, plan)) for buffer, grad in zip((dq, dk, dv), grads, strict=True)
        )
        return first, second, third

    def _own(self, x: Tensor, plan: FunctionPlan) -> Tensor:
        """The rank's own tokens of a packed tensor [T, H, D]. Strided tensors stay strided."""
        if self._ranks is None:
            return x
        tokens = torch.from_numpy(plan.tokens[self._ranks.group.rank()]).to(x.device)
        return x[tokens] if x.is_contiguous() else x.transpose(0, 1)[:, tokens].transpose(0, 1)

    def _gathered(self, own: Tensor, plan: FunctionPlan) -> Tensor:
        return own if self._ranks is None else self._ranks.gather(own, plan.tokens)

    def _packed(self, result: Tensor) -> Tensor:
        """A sequence's output as [T, H, D]."""
        return result.transpose(0, 1) if self._shape is Shape.BHSD else result

    def _called(self, tensors: Sequence[Tensor], plan: FunctionPlan) -> tuple[Tensor, Tensor | None]:
        """The output of the last sequence, without the dim of sequences, and the log-sum-exp [heads, tokens] or None.

        Raises:
            VerificationError: The function raises, changes an input, or returns no output of the queries.
        """
        laid_out, name = [self._laid_out(x) for x in tensors], self._function.name
        versions = [x._version for x in laid_out]
        try:
            found = self._function.call(*laid_out, **plan.arguments)
        except (Exception, SystemExit) as error:
            raise VerificationError(f"{name} raised {type(error).__name__}: {str(error)[:500]}") from error
        for each, x, version in zip("qkv", laid_out, versions, strict=True):
            if x._version != version:
                raise VerificationError(f"{name} changes {each} in place; let it write to a tensor of its own")
        out, *others = found if isinstance(found, (tuple, list)) and found else (found,)
        self._check_output(out, laid_out[0], laid_out[2].shape[-1])
        lse, batched = (others or [None])[0], (self._batch, tensors[0].shape[1], tensors[0].shape[0])
        if not isinstance(lse, Tensor) or lse.shape not in (batched, batched[1:]) or lse.numel() != math.prod(batched):
            lse = None
        return out[-1] if self._shape.is_batched else out, None if lse is None else lse.reshape(batched)[-1]

    def _laid_out(self, x: Tensor) -> Tensor:
        """A packed tensor in the function's shape. In strided ones tokens and heads change places in memory."""
        if not self._shape.is_batched:
            return x
        stacked = torch.stack((*[x.detach().flip(-1)] * (self._batch - 1), x)) if self._batch > 1 else x[None]
        ordered = stacked.transpose(1, 2) if self._shape is Shape.BHSD else stacked
        if self._batch == 1:
            return ordered
        return ordered.contiguous() if x.is_contiguous() else ordered.transpose(1, 2).contiguous().transpose(1, 2)

    def _check_output(self, out: Any, q: Tensor, width: int) -> None:
        name, shape = self._function.name, [*q.shape[:-1], width]
        if not isinstance(out, Tensor):
            raise VerificationError(f"{name} returned a {type(out).__name__}; return the output as a tensor")
        if list(out.shape) != shape:
            raise VerificationError(
                f"{name} returned {list(out.shape)} for queries of {list(q.shape)}; return {self._shape.dims}: {shape}"
            )
        if out.dtype != q.dtype or out.device != q.device:
            raise VerificationError(
                f"{name} returned {out.dtype} on {out.device} for {q.dtype} on {q.device}; cast the output back"
            )
