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
from longca_bench.functions.arguments import Context, values_of
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
        """The shape of a name.

        Raises:
            RequestError: There is none.
        """
        if name not in tuple(cls):
            raise RequestError(f"the shape is {name!r}; give {', '.join(cls)}")
        return cls(name)

    @property
    def dims(self) -> str:
        """The dims in words."""
        return f"[{', '.join(_DIMS[letter] for letter in self)}]"

    @property
    def tokens(self) -> int:
        """The dim of tokens."""
        return max(self.find("t"), self.find("s"))

    @property
    def heads(self) -> int:
        """The dim of heads."""
        return self.find("h")

    @property
    def is_batched(self) -> bool:
        """Whether there is a dim of sequences."""
        return "b" in self


class FunctionPlan(Plan):
    """A plan for a function.

    Attributes:
        arguments: The values of the parameters after q, k and v.
        tokens: The tokens of each rank. Empty on one device.
    """

    arguments: dict[str, Any]
    tokens: Tokens


class FunctionKernel:
    """A function of q, k and v, which returns out, or (out, lse). Without a log-sum-exp, its own is NaN.

    Args:
        function: The function.
        shape: The shape of its tensors.
        batch: Sequences of a batch, if the shape has a dim of them. The kernel's own is the last, and the results of
            the others are dropped.
        ranks: The ranks that share each sequence, or None on one device.
        placement: The tokens of each rank.
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
        plan.tokens = () if ranks is None else tokens_of_ranks(self._placement, problem, ranks.size)
        own, group = (None, None) if ranks is None else (plan.tokens[ranks.group.rank()], ranks.group)
        context = Context(problem, self._batch if self._shape.is_batched else None, own, group)
        plan.arguments = values_of(self._function.parameters, context)
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
        own = [self._own(x, plan) for x in (q, k, v)]
        with torch.no_grad():
            result, found_lse = self._called(own, plan)
        found = result.transpose(0, 1) if self._shape is Shape.BHSD else result
        if found_lse is None or self._ranks is not None:
            found_lse = q.new_full((q.shape[1], q.shape[0]), torch.nan, dtype=lse_dtype(q))
        return fill(out, self._gathered(found, plan)), fill(lse, found_lse)

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
        name, remedy = self._function.name, "wrap a kernel in a torch.autograd.Function, or take the forward alone"
        with torch.enable_grad():
            own = [self._own(x, plan).detach().requires_grad_() for x in (q, k, v)]
            result, _ = self._called(own, plan)
            if not result.requires_grad:
                raise VerificationError(f"no gradient reaches the output of {name}; {remedy}: --direction forward")
            part = self._own(dout, plan)
            along = part.transpose(0, 1) if self._shape is Shape.BHSD else part
            try:
                grads = torch.autograd.grad(result, own, along, allow_unused=True)
            except (Exception, SystemExit) as error:
                raise VerificationError(f"the backward of {name} raised {_said(error)}") from error
        if missing := [x for x, grad in zip("qkv", grads, strict=True) if grad is None]:
            raise VerificationError(
                f"no gradient of {name} reaches {' and '.join(missing)}; {remedy}: --direction forward"
            )
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
            raise VerificationError(f"{name} raised {_said(error)}") from error
        for each, x, version in zip("qkv", laid_out, versions, strict=True):
            if x._version != version:
                raise VerificationError(f"{name} changes {each} in place; let it write to a tensor of its own")
        first = found[0] if isinstance(found, (tuple, list)) and found else found
        self._check_output(first, laid_out[0])
        return first[-1] if self._shape.is_batched else first, self._lse(found, tensors[0])

    def _laid_out(self, x: Tensor) -> Tensor:
        """A packed tensor in the function's shape. In strided ones tokens and heads change places in memory."""
        shape, is_strided = self._shape, not x.is_contiguous()
        if not shape.is_batched:
            return x
        stacked = torch.stack((*[x.detach().flip(-1)] * (self._batch - 1), x)) if self._batch > 1 else x[None]
        ordered = stacked.transpose(1, 2) if shape is Shape.BHSD else stacked
        if self._batch == 1:
            return ordered
        if is_strided:
            return ordered.transpose(shape.tokens, shape.heads).contiguous().transpose(shape.tokens, shape.heads)
        return ordered.contiguous()

    def _check_output(self, out: Any, q: Tensor) -> None:
        name, shape = self._function.name, self._shape
        if not isinstance(out, Tensor):
            raise VerificationError(f"{name} returned a {type(out).__name__}; return the output as a tensor")
        if out.shape != q.shape:
            swapped = q.transpose(shape.tokens, shape.heads).shape
            fits = ", whose heads and tokens have changed places" if out.shape == swapped else ""
            raise VerificationError(
                f"{name} returned {list(out.shape)} for queries of {list(q.shape)}{fits}; return {shape.dims}, as q "
                "has it"
            )
        if out.dtype != q.dtype or out.device != q.device:
            raise VerificationError(
                f"{name} returned {out.dtype} on {out.device} for {q.dtype} on {q.device}; cast the output back"
            )

    def _lse(self, found: Any, q: Tensor) -> Tensor | None:
        """The log-sum-exp that a call gave: [heads, tokens]."""
        lse: Any = found[1] if isinstance(found, (tuple, list)) and len(found) > 1 else None
        batched = (self._batch, q.shape[1], q.shape[0])
        if isinstance(lse, Tensor) and lse.shape in (batched, batched[1:]) and lse.numel() == math.prod(batched):
            return lse.reshape(batched)[-1]
        return None


def _said(error: BaseException) -> str:
    """An exception with the advice that helps."""
    text, advice = str(error)[:500], ""
    if "view" in text and "stride" in text:
        advice = ". Call .contiguous() or .reshape()"
    elif "in-place" in text:
        advice = ". Let it write to a tensor of its own"
    return f"{type(error).__name__}: {text}".rstrip(": .") + advice
