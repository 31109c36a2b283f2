"""One call of a user's function, with its gradients by autograd, and what is wrong with the call itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longca.errors import LongCAError, RequestError, VerificationError
from longca.manifests import Direction, Problem
from longca.plain_text import plain_text
from longca_bench.functions.arguments import ARGUMENTS, Context
from longca_bench.functions.ranks import Ranks, Tokens
from longca_bench.functions.shapes import Shape
from longca_bench.functions.user_function import UserFunction
from longca_bench.verification.inputs import Inputs

__all__ = ["Way", "arguments_of", "called", "output_of", "read_function"]

_GRADIENTS = {"q": "dq", "k": "dk", "v": "dv"}


@dataclass(frozen=True)
class Way:
    """How a function is called.

    Attributes:
        shape: The shape of its tensors.
        strided: Whether its tensors are not contiguous.
        ranks: The ranks, or None on one device.
        tokens: The tokens of each rank.
    """

    shape: Shape
    strided: bool = False
    ranks: Ranks | None = None
    tokens: Tokens = ()


def read_function(function: Any, name: str | None = None) -> UserFunction:
    """A function with the parameters that LongCA fills. See `UserFunction.of`."""
    return UserFunction.of(function, tuple(ARGUMENTS), name)


def called(function: UserFunction, problem: Problem, sequences: Sequence[Inputs], way: Way) -> list[dict[str, Tensor]]:
    """Calls a function, and gathers its results in the order of tokens.

    Args:
        function: The function.
        problem: The problem of each sequence.
        sequences: The inputs of each sequence.
        way: How it is called.

    Returns:
        `out`, and for the direction `backward` also `dq`, `dk` and `dv`, packed, for each sequence. Ranks other than
        the first get an empty list.

    Raises:
        VerificationError: It raises, or its results are no attention of its inputs: no tensor, another shape, dtype or
            device, or no gradient. The message has the remedy.
    """
    own = None if way.ranks is None else way.tokens[way.ranks.rank]
    tensors = {
        name: way.shape.laid_out(_own(sequences, name, own), strided=way.strided) for name in ("q", "k", "v", "dout")
    }
    before = {name: x.clone() for name, x in tensors.items()}
    is_backward = problem.direction is Direction.BACKWARD
    leaves = {name: tensors[name].requires_grad_(is_backward) for name in _GRADIENTS}
    batch = len(sequences) if way.shape.is_batched else None
    context = Context(problem, batch, own, None if way.ranks is None else way.ranks.group)
    made = arguments_of(function, context)
    try:
        found = function.call(*leaves.values(), **made)
    except (Exception, SystemExit) as error:
        raise VerificationError(f"{function.name} raised {_said(error)}") from error
    out = output_of(function, found, leaves["q"], way.shape)
    results = {"out": out.detach()}
    if is_backward:
        results |= _gradients(function, out, leaves, tensors["dout"])
    for name, x in tensors.items():
        if not torch.equal(x.detach(), before[name]):
            raise VerificationError(f"{function.name} changes {name} in place; let it write to a tensor of its own")
    apart = {name: way.shape.packed(x) for name, x in results.items()}
    parts = [{name: found[at] for name, found in apart.items()} for at in range(len(sequences))]
    return parts if way.ranks is None else way.ranks.gather(parts, way.tokens)


def _own(sequences: Sequence[Inputs], name: str, own: Any) -> list[Tensor]:
    """One tensor of each sequence, with the rank's own tokens."""
    whole = [getattr(inputs, name) for inputs in sequences]
    return whole if own is None else [x[torch.from_numpy(own).to(x.device)] for x in whole]


def arguments_of(function: UserFunction, context: Context) -> dict[str, Any]:
    """The values of a function's parameters after q, k and v."""
    return {name: ARGUMENTS[name].make(context) for name in function.asks}


def output_of(function: UserFunction, found: Any, q: Tensor, shape: Shape) -> Tensor:
    """The output in whatever a call returned. A tuple's first tensor is the output.

    Raises:
        VerificationError: It is no output of the queries. The message has the remedy.
    """
    out = found[0] if isinstance(found, (tuple, list)) and found else found
    if not isinstance(out, Tensor):
        raise VerificationError(f"{function.name} returned a {type(out).__name__}; return the output as a tensor")
    if out.shape != q.shape:
        swapped = q.transpose(shape.tokens, shape.heads).shape
        fits = ", whose heads and tokens have changed places" if out.shape == swapped else ""
        raise VerificationError(
            f"{function.name} returned {list(out.shape)} for queries of {list(q.shape)}{fits}; return "
            f"{shape.dims}, as q has it"
        )
    if out.dtype != q.dtype or out.device != q.device:
        raise VerificationError(
            f"{function.name} returned {out.dtype} on {out.device} for {q.dtype} on {q.device}; cast the output back"
        )
    return out


def _gradients(function: UserFunction, out: Tensor, leaves: dict[str, Tensor], dout: Tensor) -> dict[str, Tensor]:
    remedy = "wrap a kernel in a torch.autograd.Function, or verify the forward alone: --direction forward"
    if not out.requires_grad:
        raise VerificationError(f"no gradient reaches the output of {function.name}; {remedy}")
    try:
        grads = torch.autograd.grad(out, tuple(leaves.values()), dout, allow_unused=True)
    except (Exception, SystemExit) as error:
        raise VerificationError(f"the backward of {function.name} raised {_said(error)}") from error
    if missing := [name for name, grad in zip(leaves, grads, strict=True) if grad is None]:
        raise VerificationError(f"no gradient of {function.name} reaches {' and '.join(missing)}; {remedy}")
    return {_GRADIENTS[name]: grad for name, grad in zip(leaves, grads, strict=True)}


def _said(error: BaseException) -> str:
    text, advice = plain_text(error, 500), ""
    if "view" in text and "stride" in text:
        advice = ". Call .contiguous() or .reshape()"
    elif "in-place" in text:
        advice = ". Let it write to a tensor of its own"
    name = type(error).__name__ if not isinstance(error, LongCAError) or isinstance(error, RequestError) else "an error"
    return f"{name}: {text}".rstrip(": .") + advice
