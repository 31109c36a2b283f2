"""One call of a user's function, with its gradients by autograd, and what is wrong with the call itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longca.errors import LongCAError, RequestError, VerificationError
from longca.manifests import Direction, Problem
from longca.plain_text import plain_text
from longca_bench.functions.arguments import ARGUMENTS, Context
from longca_bench.functions.ranks import Ranks, Tokens
from longca_bench.functions.shapes import Shape
from longca_bench.functions.user_function import UserFunction
from longca_bench.verification.inputs import Inputs

__all__ = ["Call", "Callee", "Here", "LateError", "Way", "arguments_of", "called", "output_of", "read_function"]

_GRADIENTS = {"q": "dq", "k": "dk", "v": "dv"}


class LateError(VerificationError):
    """A function gave no answer in time."""


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


@dataclass(frozen=True)
class Call:
    """A call of a function on tensors that are laid out.

    Attributes:
        problem: The problem of each sequence.
        shape: The shape of its tensors.
        batch: Number of sequences, or None for packed tensors.
        queries: The rank's own queries, as positions in the sequence. None for all.
        in_half: Whether the group is the rank's half of all ranks.
    """

    problem: Problem
    shape: Shape
    batch: int | None = None
    queries: NDArray[np.int64] | None = None
    in_half: bool = False

    @property
    def results(self) -> dict[str, str]:
        """The names of the results, each with the tensor that it is like."""
        gradients = {_GRADIENTS[name]: name for name in _GRADIENTS}
        return {"out": "q", **(gradients if self.problem.direction is Direction.BACKWARD else {})}


class Callee(Protocol):
    """A function that is called in this process or in a worker."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def asks(self) -> tuple[str, ...]:
        """The parameters after q, k and v that LongCA fills."""

    def results(self, call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by their names, in the shape of its tensors.

        Args:
            call: The call.
            tensors: `q`, `k`, `v` and `dout`.

        Raises:
            VerificationError: It raises, or its results are no attention of its inputs: no tensor, another shape, dtype
                or device, or no gradient. The message has the remedy.
        """


@dataclass(frozen=True)
class Here:
    """A function that is called in this process.

    Attributes:
        function: The function.
        ranks: The ranks, or None on one device.
    """

    function: UserFunction
    ranks: Ranks | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.function.name

    @property
    def asks(self) -> tuple[str, ...]:
        """The parameters after q, k and v that LongCA fills."""
        return self.function.asks

    def results(self, call: Call, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its results by their names. See `Callee.results`."""
        function, is_backward = self.function, call.problem.direction is Direction.BACKWARD
        leaves = {name: tensors[name].detach().requires_grad_(is_backward) for name in _GRADIENTS}
        ranks = self.ranks.half if self.ranks is not None and call.in_half else self.ranks
        group = None if ranks is None else ranks.group
        made = arguments_of(function, Context(call.problem, call.batch, call.queries, group))
        try:
            found = function.call(*leaves.values(), **made)
        except (Exception, SystemExit) as error:
            raise VerificationError(f"{self.name} raised {_said(error)}") from error
        out = output_of(function, found, leaves["q"], call.shape)
        gradients = _gradients(function, out, leaves, tensors["dout"]) if is_backward else {}
        return {"out": out.detach(), **gradients}


def read_function(function: Any, name: str | None = None) -> UserFunction:
    """A function with the parameters that LongCA fills. See `UserFunction.of`."""
    return UserFunction.of(function, tuple(ARGUMENTS), name)


def called(callee: Callee, problem: Problem, sequences: Sequence[Inputs], way: Way) -> list[dict[str, Tensor]]:
    """Calls a function, and gathers its results in the order of tokens.

    Args:
        callee: The function.
        problem: The problem of each sequence.
        sequences: The inputs of each sequence.
        way: How it is called.

    Returns:
        `out`, and for the direction `backward` also `dq`, `dk` and `dv`, packed, for each sequence. Ranks other than
        the first get an empty list.

    Raises:
        VerificationError: See `Callee.results`. It is also raised for a function that changes an input.
    """
    own = None if way.ranks is None else way.tokens[way.ranks.rank]
    tensors = {
        name: way.shape.laid_out(_own(sequences, name, own), strided=way.strided) for name in ("q", "k", "v", "dout")
    }
    before = {name: x.clone() for name, x in tensors.items()}
    in_half = way.ranks is not None and way.ranks.is_half
    call = Call(problem, way.shape, len(sequences) if way.shape.is_batched else None, own, in_half)
    results = callee.results(call, tensors)
    for name, x in tensors.items():
        if not torch.equal(x, before[name]):
            raise VerificationError(f"{callee.name} changes {name} in place; let it write to a tensor of its own")
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
